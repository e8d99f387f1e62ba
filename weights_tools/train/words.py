"""The words of the small world: who and what can be in a story. Knows nothing about rules, sentences or models."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


GIRLS = _words(
    "Mia Anna Lily Rosa Emma Lucy Nora Ella Clara Ruth Daisy Molly Sara Ida Jane Kate Zoe Maya Hazel Pearl"
)
BOYS = _words(
    "Tom Ben Max Leo Sam Jack Finn Hugo Paul Oscar Theo Adam Felix Bruno Dan Peter Rob Toby Henry Karl"
)
NAMES = GIRLS + BOYS

PEOPLE_KINDS = ("girl", "boy")
ANIMAL_KINDS = ("cat", "dog", "fox", "bear", "rabbit", "mouse", "duck", "frog", "pig", "goat", "hen", "mole")
KINDS = PEOPLE_KINDS + ANIMAL_KINDS

THINGS = _words(
    "ball book key kite lamp hat drum boat doll cup bell rope coat map box spoon basket bottle ring "
    "button blanket shovel whistle mirror pencil puppet trumpet wagon ladder scarf"
)
FOODS = ("cake", "pie", "pear", "carrot", "cookie", "sandwich")
OBJECTS = THINGS + FOODS

PLACES = _words(
    "park kitchen garden forest school shop barn house library castle cave tower meadow village "
    "cellar museum station harbour bakery tent"
)

ITEMS = ("apples", "nuts", "shells", "stones", "berries", "coins", "flowers", "leaves", "feathers", "stamps")
EDIBLE = ("apples", "nuts", "berries")

COLOURS = ("red", "blue", "green", "yellow", "brown", "white", "black", "pink", "purple", "grey")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
NUMBERS = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
)
SKIES = ("sunny", "rainy", "windy", "snowy", "cloudy")

PRONOUNS = {"girl": ("she", "her", "her"), "boy": ("he", "him", "his")}  # subject, object, possessive


def gender_of(name: str) -> str:
    """Say which pronouns a name takes: "girl" or "boy"."""
    return "girl" if name in GIRLS else "boy"


def number_word(number: int) -> str:
    """Spell a number from 0 to 20."""
    return NUMBERS[number]
