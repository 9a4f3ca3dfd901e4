"""Kunlunxin: whole XPUs and vXPUs."""
