"""Resources of this machine: free memory, scratch folders, model folders, the browser, and running a notebook."""
