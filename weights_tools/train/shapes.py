"""The shapes of the stories: what happens in which order, with letters for people, things and places.

A step is the kind of an event and the letters that take part ("give A B x"). A step that ends in "?" is left out
half of the time. Capitals are people, x y z things, f food, p q r places, i countable things.
"""

from __future__ import annotations

# The order in which a step names the roles of its event.
SIGNATURES: dict[str, str] = {
    "enter": "A", "enter_in": "Ap", "meet": "ABp", "at": "Ap", "go": "Ap", "go_from": "Aqp", "go_both": "ABp",
    "join": "ABp", "shelter": "Ap", "has_new": "Ax", "lies_new": "xp", "find_new": "Axp", "has": "Ax", "take": "Ax",
    "take_in": "Axp", "put": "Axp", "lose": "Axp", "give": "ABx", "swap": "ABxy", "ask_yes": "ABx", "ask_no": "ABx",
    "want": "Ax", "tell_has": "ABx", "tell_lies": "ABxp", "still_lies": "xp", "sad_lost": "Ax", "happy_has": "Ax",
    "thank": "ABx", "paint": "Ax", "colour": "x", "break": "Ax", "mend": "Ax", "eat": "Ax", "play": "ABx",
    "together": "AB", "alone": "A", "sleep": "A", "wake": "A", "count": "Ai", "more": "Ai", "fewer": "Ai",
    "share": "ABi", "day": "", "next_day": "", "sky": "", "flavour": "", "end": "A",
}  # fmt: skip

_SHAPES = """
lost and found: enter A; has_new A x; at A p; lose A x p; go A q; sad_lost A x; meet A B q; go B p; take_in
    B x p; go B q; give B A x; thank A B x; end A
a gift: enter A; at A p; has_new A x; go A q; meet A B q; want B x; give A B x; thank B A x; happy_has B x?;
    end B
a gift passed on: enter A; has_new A x; at A p; meet A B p; give A B x; go B q; meet B C q; give B C x;
    happy_has C x; end C
the swap: enter A; has_new A x; at A p; meet A B p; has_new B y; want A y; want B x; swap A B x y; happy_has
    A y; happy_has B x; end A
a polite question: enter A; at A p; meet A B p; has_new B x; want A x; ask_yes A B x; thank A B x; go A q;
    has A x?; end A
no and then yes: enter A; at A p; meet A B p; has_new B x; ask_no A B x; go A q?; go B r; go A r; give B A
    x; thank A B x; end B
hidden treasure: enter A; at A p; has_new A x; put A x p; go A q; meet A B q; tell_lies B A x p; go B p;
    take_in B x p; end B
searching: enter A; at A p; has_new A x; lose A x p; sad_lost A x; go A q; go A r; go A p; take_in A x p;
    happy_has A x; end A
two friends walk: enter A; at A p; meet A B p; together A B; go_both A B q; find_new A x q; play A B x?;
    go_both A B r; end A
the picnic: sky?; enter A; has_new A f; at A p; meet A B p; has_new B g; go_both A B q; eat A f; eat B g;
    together A B; end A
the hungry one: enter A; at A p; meet A B p; has_new B f; alone A; ask_yes A B f; eat A f; end A
broken and mended: enter A; at A p; has_new A x; go A q; break A x; meet A B q; give A B x; mend B x; give B
    A x; thank A B x; end A
new paint: enter A; at A p; has_new A x; colour x; paint A x; colour x; meet A B p; play A B x; end A
a painted gift: enter A; at A p; find_new A x p; paint A x; go A q; meet A B q; give A B x; colour x?; thank
    B A x; end B
counting: enter A; at A p; count A i; more A i; go A q; more A i; end A
sharing: enter A; at A p; count A i; meet A B p; share A B i; together A B; end B
eating some: enter A; at A p; count A e; fewer A e; go A q; meet A B q; share A B e; end A
gathering: day; enter A; at A p; count A i; go A q; more A i; go A r; more A i; go A p; end A
rain: enter A; at A p; has_new A x?; sky rainy; shelter A q; meet A B q; together A B; end B
a week: day; enter A; at A p; find_new A x p; sleep A; next_day; wake A; go A q; put A x q; sleep A;
    next_day; wake A; take A x; end A
the long walk: enter A; has_new A x; at A p; go_from A p q; go_from A q r; put A x r; go_from A r p;
    still_lies x r; end A
the visit: day?; enter A; at A p; enter_in B q; has_new A x?; join A B q; together A B; go_both A B p; end B
three in a room: enter A; at A p; enter_in B p; enter_in C p; has_new A x; give A B x; give B C x; happy_has
    C x; end C
round the circle: enter A; at A p; enter_in B p; enter_in C p; has_new A x; has_new B y; give A B x; give B
    C y; give B A x; happy_has A x?; end C
who has it: enter A; at A p; enter_in B p; has_new B x; tell_has A B x; give B A x; go A q; enter_in C q;
    tell_has C A x; end A
the borrowed thing: enter A; at A p; has_new A x; meet A B p; ask_yes B A x; go B q; has B x; go B p; give B
    A x; end A
the forgotten thing: enter A; has_new A x; at A p; put A x p; go A q; alone A; go A p; take A x; happy_has A
    x; end A
left behind: enter A; has_new A x; at A p; lose A x p; go A q; enter_in B p; take B x; go B q; give B A x;
    thank A B x; end A
two things: enter A; has_new A x; has_new A y; at A p; put A x p; go A q; put A y q; still_lies x p;
    still_lies y q; end A
sharing things: enter A; at A p; has_new A x; has_new A y; meet A B p; give A B y; has A x; has B y; play A
    B x; end A
the finder: enter A; lies_new x p; at A q; go A p; take A x; happy_has A x; go A r; meet A B r; end A
the race: enter A; at A p; enter_in B p; together A B; go A q; go B q; together B A; end A
hide and seek: enter A; at A p; enter_in B p; together A B; go B q; go A r; go A q; together A B; end A
the sleeper: enter A; at A p; has_new A x; sleep A; wake A; go A q; put A x q?; end A
the helper: enter A; at A p; meet A B p; has_new B x; lose B x p; sad_lost B x; take A x; give A B x; thank
    B A x; end B
the shy one: enter A; at A p; enter_in B q; alone A; go A q; together A B; has_new B x; give B A x;
    happy_has A x; end A
a toy for two: enter A; at A p; enter_in B p; find_new B x p; want A x; play A B x; give B A x; go A q; end
    A
the box in the cellar: enter A; lies_new x p; lies_new y q; at A r; go A p; take A x; go A q; put A x q;
    take A y; end A
the errand: enter A; at A p; enter_in B p; has_new B x; give B A x; go A q; enter_in C q; give A C x; go A
    p; together A B; end A
the market: day; enter A; has_new A f; at A p; enter_in B p; has_new B x; swap A B f x; eat B f; happy_has A
    x; end A
the journey home: enter A; at A p; go A q; find_new A x q; go A r; find_new A y r; go A p; put A x p; put A
    y p?; end A
the mender: enter A; at A p; has_new A x; break A x; go A q; enter_in B q; give A B x; mend B x; give B A x;
    go A r; end A
good friends: enter A; at A p; enter_in B p; has_new A x; together A B; play A B x; go_both A B q; put A x
    q; end B
two seekers: enter A; at A p; enter_in B q; lies_new x r; want A x; want B x; go A r; take A x; go B r;
    ask_no B A x; end A
free: enter A; at A p; enter_in B q; has_new A x; lies_new y r; *; *; *; *; *; end A
a busy day: enter A; at A p; enter_in B p; enter_in C q; has_new A x; has_new C y; *; *; *; *; *; *; *; end
    B
many steps: enter A; at A p; has_new A x; has_new A y; *; *; *; *; *; *; end A
"""


def _read(text: str) -> dict[str, tuple[str, ...]]:
    """Read the shapes: a name, a colon, steps between semicolons; an indented line goes on with the shape."""
    shapes = {}
    for line in text.replace("\n    ", " ").strip().splitlines():
        name, steps = line.split(": ")
        shapes[name] = tuple(steps.split("; "))
    return shapes


SHAPES: dict[str, tuple[str, ...]] = _read(_SHAPES)
