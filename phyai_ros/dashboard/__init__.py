"""A page that shows a running policy node: served from this machine, read only, fed by the node's own topics."""
