"""A device plugin whose devices are the files of a directory, and the example of a vendor."""
