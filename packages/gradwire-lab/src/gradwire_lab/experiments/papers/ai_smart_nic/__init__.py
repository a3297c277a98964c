"""The smart NIC: its ring, the steps with the all-reduce in the NIC, and the hardware resources."""

EXHIBITS = {
    "smart-nic-figure-1": "ai_smart_nic.figure_1:EXHIBIT",
    "smart-nic-figures-2-and-4": "ai_smart_nic.model:FIGURES",
    "smart-nic-figure-2b": "ai_smart_nic.figure_2b:EXHIBIT",
    "smart-nic-figure-3b": "ai_smart_nic.figure_3:EXHIBIT",
    "smart-nic-table-i": "ai_smart_nic.table_1:EXHIBIT",
    "smart-nic-section-iv-c": "ai_smart_nic.model:RINGS",
    "smart-nic-section-v-b": "ai_smart_nic.model:MODEL",
}
"""Each exhibit's module, by name, in the order of the printed tables."""
