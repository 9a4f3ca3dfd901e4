"""Text that would run, load or break something where it is put into a page as it is."""

EVIL = (
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "\"'><svg onload=alert(1)>",
    "javascript:alert(1)",
    "{{7*7}}${alert(1)}",
    "</title></textarea><iframe src=//evil.example onload=alert(1)>",
)
"""No name of Kubernetes has such characters, labels and annotations may; the ledger keeps all."""
