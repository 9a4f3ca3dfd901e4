"""HTTP of the pages: addresses in, HTML and one stream of changes out."""
