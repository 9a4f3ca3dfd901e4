"""The tables of `make bench-sql`."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def report(result: Row, budget_ms: float) -> list[str]:
    """Prints the tables; returns the questions whose median is beyond the budget."""
    counts = ", ".join(f"{count:,} {table}" for table, count in result["rows"].items())
    print(f"{counts}; {result['size']}; {result['filled_s']}")
    print(f"\n{'':<52}{'rows':>6}{'first':>8}{'median':>8}{'worst':>8}{'cpu':>8}{'loaded':>8}  ms")
    for title, row in result["questions"].items():
        loaded = result["questions_beside_writers"][title]["median_ms"]
        print(
            f"{title[:51]:<52}{row['rows']:>6}{row['first_ms']:>8}{row['median_ms']:>8}"
            f"{row['max_ms']:>8}{row['cpu_ms']:>8}{loaded:>8}"
        )
    print(
        f"\n{'beside writers':<24}{'seconds':>8}{'grant p50':>11}{'p99':>7}{'max':>8}"
        f"{'usage p50':>11}{'p99':>7}{'max':>8}{'refused':>9}"
    )
    for what, row in result["writers_beside"].items():
        figures = [
            row.get(f"{name}_{key}_ms", "-")
            for name in ("grant", "usage")
            for key in ("p50", "p99", "max")
        ]
        print(
            f"{what:<24}{row.get('seconds', '-'):>8}{figures[0]:>11}{figures[1]:>7}"
            f"{figures[2]:>8}{figures[3]:>11}{figures[4]:>7}{figures[5]:>8}{row['refused']:>9}"
        )
    sums = result["sums_of_namespaces"]
    print(
        f"\nsums of namespaces: {sums['hours']} hours in {sums['first_s']} s, "
        f"then {sums['again_s']} s a round"
    )
    capacity = result["sums_of_capacity"]
    print(
        f"sums of capacity: {capacity['hours']} hours in {capacity['first_s']} s, "
        f"then {capacity['again_s']} s a round"
    )
    print(f"promises over the whole ledger: {sum(result['promises_s'].values()):.1f} s")
    print(
        "samples: {samples_before:,} before retention, {samples_left:,} left".format(
            **result["retention"]
        )
    )
    return [title for title, row in result["questions"].items() if row["median_ms"] > budget_ms]
