"""From the rows of the question `showback` to a bill: prices, costs that add up, files.

Pure: in come rows and a price list, out comes text.
"""
