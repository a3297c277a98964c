"""What attaching would give: from some steps of a run to its steps with gradwire, on any network."""
