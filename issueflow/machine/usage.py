"""What runs used, added up from what their CLIs told; what is unknown stays unknown, and no price is made up."""

from collections.abc import Iterable

from issueflow.machine.fold import Position, Run
from issueflow.models import Usage


def own_share(position: Position, session: str | None, told: Usage, running: frozenset[str]) -> Usage:
    """A run's own part of what its CLI told; the figures in `running` are told of the whole conversation so far."""
    earlier = [run.ended.usage for run in position.runs if run.ended and run.ended.usage and run.session == session]
    if session is None or not earlier:
        return told
    own: dict[str, float] = {}
    for name in sorted(running):
        if (value := getattr(told, name)) is not None:
            own[name] = max(0, round(value - sum(getattr(usage, name) or 0 for usage in earlier), 9))
    return told.model_copy(update=own)


def total(runs: Iterable[Run]) -> Usage | None:
    """The sum of what is known; None when nothing is."""
    known = [run.ended.usage for run in runs if run.ended and run.ended.usage]
    sums: dict[str, float | None] = {}
    for name in Usage.model_fields:
        values = [value for usage in known if (value := getattr(usage, name)) is not None]
        sums[name] = round(sum(values), 9) if values else None
    return Usage.model_validate(sums) if known else None


def unknown(runs: Iterable[Run]) -> int:
    """How many runs of agents have ended without anything being known of what they used."""
    return sum(
        bool(run.dropped or (run.ended and run.was_played and not run.ended.usage)) for run in runs if run.started.agent
    )


def in_words(usage: Usage | None) -> str:
    """`12,000 tokens in (2,400 cached), 600 out, $0.0210`, or `unknown`."""
    if usage is None:
        return "unknown"
    parts = [f"{usage.input:,} tokens in" if usage.input is not None else "tokens in unknown"]
    parts[0] += f" ({usage.cached:,} cached)" if usage.cached else ""
    parts.append(f"{usage.output:,} out" if usage.output is not None else "out unknown")
    parts.append(f"${usage.cost_usd:.4f}" if usage.cost_usd is not None else "cost unknown")
    return ", ".join(parts)
