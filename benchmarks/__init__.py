"""What `pixelis bench` runs, beside peers and beside the paper. Needs a clone."""
