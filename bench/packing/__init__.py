"""`make bench-packing`: node policies on openb's traces, and the table of docs/packing.md.

    make bench-packing ARGS="--traces FOLDER"            # runs what FOLDER has and is not known yet
    make bench-packing ARGS="--from FILE.json..."        # takes over outputs of hamictl replay
    make bench-packing                                   # writes the page from docs/packing.json

All its figures are in docs/packing.json, run by run.
"""
