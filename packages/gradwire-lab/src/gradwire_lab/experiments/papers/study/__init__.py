"""The measurement study's tables and figures: the cost of an all-reduce, calculated and measured."""

EXHIBITS = {
    "study-table-1": "study.table_1:EXHIBIT",
    "study-equations-1-to-4": "study.formulas:EXHIBIT",
    "study-figure-7": "study.figure_7:EXHIBIT",
    "study-figure-8": "study.figure_8:EXHIBIT",
    "study-section-1-firecaffe": "study.firecaffe:EXHIBIT",
}
"""Each exhibit's module, by name, in the order of the printed tables."""
