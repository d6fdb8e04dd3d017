"""This machine: free memory, scratch folders, model folders, running a notebook."""
