"""What is prefilled once, where, and when it arrives: prefix trees, their choice, links, placement, deduplication."""
