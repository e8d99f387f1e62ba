"""`haaw memory`: how many bytes a KV cache takes, for a model or for numbers; a simulation; a page; a measured run."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from haaw.cli.output import remark, write, write_json
from haaw.errors import BadInputError

ROOM_CONTEXTS = 2


def memory(
    model: Annotated[
        str | None,
        typer.Argument(help="A model's name, file, folder or config.json, or a preset (see --presets)."),
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Layers.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Key/value heads.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Width of a head.")] = None,
    bytes_per_element: Annotated[float | None, typer.Option(help="4, 2, 1, 0.5 …")] = None,
    context: Annotated[int | None, typer.Option(help="Positions of each sequence.")] = None,
    sequences: Annotated[int, typer.Option(help="Sequences at the same time.")] = 1,
    window: Annotated[
        int | None, typer.Option(help="Positions that a layer with a window looks back.")
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(help="Which layers have the window, repeated: w has it, f keeps all, - has no cache."),
    ] = None,
    latent_width: Annotated[
        int | None, typer.Option(help="Latent width, in place of heads (multi-head latent attention).")
    ] = None,
    rope_width: Annotated[int | None, typer.Option(help="Rotated width beside the latent.")] = None,
    sinks: Annotated[int | None, typer.Option(help="First positions that a sliding cache keeps.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Positions of a block (paged).")] = None,
    cache: Annotated[
        str,
        typer.Option(
            help="What totals are of: needed, dynamic, static, sliding, int8 (or quantised), int4, paged, offloaded."
        ),
    ] = "needed",
    capacity: Annotated[int | None, typer.Option(help="Positions that a static cache reserves.")] = None,
    memory_size: Annotated[str | None, typer.Option("--memory", help="A memory, such as 24GiB.")] = None,
    weights: Annotated[str | None, typer.Option(help="Bytes of the weights, such as 16GB.")] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Send many requests through reservation and through paging.")
    ] = False,
    requests: Annotated[int | None, typer.Option(help="How many requests to simulate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the simulated requests; the same again.")] = None,
    lengths: Annotated[
        Path | None, typer.Option(help="Requests from a file: prompt,answer[,limit[,arrival]] a row.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="A picture of the simulation (.png, .svg, .pdf).")] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Run the model and compare the plan with what it took.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write the calculator as one HTML file.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Model, context and cache of a recorded run, and the bytes it had.")
    ] = None,
    presets: Annotated[bool, typer.Option("--presets", help="List the shapes known by name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> int:
    """Work out a KV cache: bytes a token, a sequence, in all, and what each kind of cache allocates for it."""
    from haaw.cli import memory_text as text
    from haaw.cli.memory_model import chosen_context, source_from
    from haaw.memory.plan import Plan
    from haaw.memory.sizes import parse_size

    if presets:
        write_json(text.presets_as_values()) if as_json else write(text.presets_table())
        return 0
    given = _given(
        layers=layers, kv_heads=kv_heads, head_dim=head_dim, bytes_per_element=bytes_per_element, window=window,
        pattern=pattern, latent_width=latent_width, rope_width=rope_width, sinks=sinks, block_size=block_size,
    )  # fmt: skip
    _check_modes(simulate, run, html, requests=requests, seed=seed, lengths=lengths, plot=plot)
    if trace is not None:
        others = _given(
            model=model, context=context, capacity=capacity, weights=weights, simulate=simulate or None,
            run=run or None, cache=None if cache == "needed" else cache,
        )  # fmt: skip
        return _of_trace(trace, {**given, **others}, sequences, memory_size, html, as_json)
    source = source_from(model, given)
    chosen = chosen_context(source, context, window)
    notes = list(source.assumptions)
    if context is None:
        whose = "the model's whole context" if source.context else "nothing was asked for"
        notes.append(f"a context of {chosen:,} positions: {whose}")
    plan = Plan(
        source.shape,
        context=chosen,
        sequences=sequences,
        kind="int8" if cache == "quantised" else cache,
        capacity=capacity,
        weights_bytes=source.weights_bytes if weights is None else parse_size(weights, "--weights"),
        memory_bytes=None if memory_size is None else parse_size(memory_size, "--memory"),
        name=source.name,
        assumptions=tuple(notes),
    )
    if html is not None:
        return _write_page(replace(plan, assumptions=source.assumptions), html, as_json)
    if run:
        return _measure(model, plan, context, as_json)
    if simulate:
        return _simulate(plan, requests, seed, lengths, plot, as_json)
    write_json(plan.to_dict()) if as_json else write(text.plan_text(plan))
    return 0


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _check_modes(simulate: bool, run: bool, html: Path | None, **simulated: Any) -> None:
    modes = [name for name, on in (("--simulate", simulate), ("--run", run), ("--html", html)) if on]
    if len(modes) > 1:
        raise BadInputError(f"{' and '.join(modes)} are two different things; choose one")
    if simulate:
        if simulated["lengths"] is not None and (simulated["requests"] or simulated["seed"] is not None):
            raise BadInputError("--lengths names the requests; leave out --requests and --seed")
        return
    if idle := [f"--{name}" for name, value in simulated.items() if value is not None]:
        raise BadInputError(f"{idle[0]} is about a simulation; add --simulate")


def _simulate(
    plan: Any, requests: int | None, seed: int | None, lengths: Path | None, plot: Path | None, as_json: bool
) -> int:
    from haaw.cli import memory_text as text
    from haaw.loading.json_file import read_text
    from haaw.memory.simulation import simulate_contiguous, simulate_paged
    from haaw.memory.workload import random_requests, read_requests

    token = plan.per_token.value
    room = ROOM_CONTEXTS * plan.context * token
    notes = list(plan.assumptions)
    if plan.memory_bytes is not None:
        room = plan.memory_bytes - plan.weights_bytes
    else:
        notes.append(
            f"no --memory: room for {ROOM_CONTEXTS} sequences of the whole context beside the weights"
        )
    capacity = int(room // token)
    if capacity < 1:
        raise BadInputError(
            f"a memory of {plan.memory_bytes:,} bytes has no room beside weights of {plan.weights_bytes:,}"
        )
    if plan.shape.windowed_layers:
        notes.append("both methods keep every position in every layer; the window saves nothing here")
    if lengths is None:
        chosen = 0 if seed is None else seed
        work = random_requests(200 if requests is None else requests, seed=chosen, context=plan.context)
        notes.append(f"{len(work)} requests made from the seed {chosen}, three short ones for one long one")
    else:
        rows = read_text(lengths, most_bytes=64 * 2**20)
        if rows is None:
            raise BadInputError(f"there is no file {lengths}")
        work = read_requests(rows, context=plan.context, name=lengths.name)
        notes.append(f"{len(work)} requests from {lengths.name}")
    outcomes = (simulate_contiguous(work, capacity), simulate_paged(work, capacity, plan.shape.block_size))
    if plot is not None:
        from haaw.memory.plot import plot_outcomes, save_plot

        save_plot(plot_outcomes(outcomes), plot)
    if as_json:
        told = [outcome.to_dict(timeline=True) for outcome in outcomes]
        write_json({**text.simulation_head(plan, capacity, work, notes), "outcomes": told})
    else:
        write(text.simulation_text(plan, capacity, work, notes, outcomes))
    if plot is not None:
        remark(f"the picture is in {plot}")
    return 0


def _measure(model: str | None, plan: Any, context: int | None, as_json: bool) -> int:
    from haaw.cli import memory_text as text
    from haaw.cli.run import load_with_bar
    from haaw.memory.arithmetic import kind_memory
    from haaw.memory.measured import measure

    if model is None:
        raise BadInputError("--run needs a model, as in: haaw memory tiny --run")
    kind = "dynamic" if plan.kind == "needed" else plan.kind
    name, options = _as_made(kind, plan.shape)
    positions = min(512, plan.context) if context is None else context
    result = measure(
        lambda: load_with_bar(model).transformer,
        planned_cache_bytes=lambda layout, held: (
            kind_memory(plan.shape, kind, held, capacity=held).allocated_bytes
        ),
        positions=positions,
        new_tokens=min(8, positions - 1),
        kind=name,
        **options,
    )
    write_json(result.to_dict()) if as_json else write(text.measured_text(result))
    return 0


def _as_made(kind: str, shape: Any) -> tuple[str, dict[str, Any]]:
    """The name and options of a kind, as the caches have them."""
    if kind.startswith("int"):
        return "quantised", {"bits": int(kind.removeprefix("int"))}
    if kind == "sliding":
        return kind, {"window": shape.window, "sinks": shape.sinks}
    return kind, {"block_size": shape.block_size} if kind == "paged" else {}


def _of_trace(
    trace: Path, others: Any, sequences: int, memory: str | None, html: Path | None, as_json: bool
) -> int:
    """The plan of a recorded run with the line that holds it against the bytes; 1 where they should be equal."""
    from haaw.cli import memory_text as text
    from haaw.cli.memory_trace import recorded_in
    from haaw.memory.sizes import parse_size

    if others:
        given = next(iter(others)).replace("_", "-")
        named = "a model is named" if given == "model" else f"--{given} is given"
        raise BadInputError(
            f"--trace brings the model, its context and its cache, and {named} too; choose one"
        )
    found = recorded_in(trace, sequences, None if memory is None else parse_size(memory, "--memory"))
    if html is not None:
        _write_page(found.plan, html, as_json, recorded=found.to_dict())
    elif as_json:
        write_json({**found.plan.to_dict(), "recorded": found.to_dict()})
    else:
        write(f"{text.plan_text(found.plan)}\nrecorded\n  {found.sentence}\n")
    return 0 if found.equal or found.note else 1


def _write_page(plan: Any, path: Path, as_json: bool, *, recorded: Any = None) -> int:
    from haaw.view.calculator import calculator_html

    path.write_text(calculator_html(plan, recorded=recorded), encoding="utf-8")
    if as_json:
        write_json({"html": str(path)})
    remark(f"the calculator is in {path}; open it in a browser, it needs no network")
    return 0
