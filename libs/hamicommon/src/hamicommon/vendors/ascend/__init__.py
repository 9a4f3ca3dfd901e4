"""Huawei Ascend."""
