"""INCEPTIONN's tables and figures: gradients, the effects of compression, and the cost of exchanges."""

EXHIBITS = {
    "inceptionn-figure-1": "inceptionn.figure_1:EXHIBIT",
    "inceptionn-figure-3": "inceptionn.figure_3:EXHIBIT",
    "inceptionn-table-ii": "inceptionn.table_2:EXHIBIT",
    "inceptionn-table-iii": "inceptionn.table_3:EXHIBIT",
    "inceptionn-figure-4": "inceptionn.figure_4:EXHIBIT",
    "inceptionn-figure-5": "inceptionn.figure_5:EXHIBIT",
    "inceptionn-figure-7": "inceptionn.figure_7:EXHIBIT",
    "inceptionn-figure-12": "inceptionn.figure_12:EXHIBIT",
    "inceptionn-figure-13": "inceptionn.figure_13:EXHIBIT",
    "inceptionn-figure-14": "inceptionn.figure_14:EXHIBIT",
    "inceptionn-figure-15": "inceptionn.figure_15:EXHIBIT",
}
"""Each exhibit's module, by name, in the order of the printed tables."""
