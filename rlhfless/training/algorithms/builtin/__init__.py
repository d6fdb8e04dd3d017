"""The algorithms that have a name: one file each, with its options, its advantages and its loss."""
