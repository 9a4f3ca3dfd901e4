"""The reference's page of reasons, from the rows of rules and nodes."""

from __future__ import annotations

from hamicommon.device_config import DeviceConfig
from hamicommon.placement.rules import NODE_REASONS, REASONS, Rule
from hamicommon.vendors.registry import Vendors
from markup import table

VENDORS = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)


def reasons_page() -> str:
    """Every reason for which a card or a node is refused."""
    rules = [
        (
            f"`{rule.reason}`",
            rule.row.group,
            rule.row.term,
            rule.row.unit,
            rule.row.help,
            _vendors_of(rule),
        )
        for rule in REASONS
    ]
    nodes = [(f"`{code}`", row.term, row.meaning) for code, row in NODE_REASONS.items()]
    return "\n\n".join(
        (
            "# Reasons of a refusal",
            "The rows are in `hamicommon/placement/rules.py`; "
            "[Add a rule](../../libs/hamicommon/add-a-rule.md) "
            "leads through an example.",
            "A card's reason is the first rule that it fails. The code is in events, logs, the "
            "answer to kube-scheduler and the label `reason` of metrics; the term is that of the "
            "[pages](../pages.md); what helps is the end of the sentence that "
            "[explain](../explain.md) begins with.",
            "## Of a card",
            table(("Code", "Cards are", "Term", "Amounts in", "What helps", "Vendors"), rules),
            "## Of a node, or of the pod",
            table(("Code", "Term", "Meaning"), nodes),
        )
    )


def _vendors_of(rule: Rule) -> str:
    names = [vendor.name for vendor in VENDORS if vendor.rules.can_refuse(rule)]
    missing = [vendor.name for vendor in VENDORS if vendor.name not in names]
    if not missing:
        return "all"
    if len(missing) < len(names):
        return f"all but {', '.join(missing)}"
    return ", ".join(names)
