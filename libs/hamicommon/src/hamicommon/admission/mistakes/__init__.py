"""Find probable mistakes of a pod's author, such as misspelt names and odd requests."""
