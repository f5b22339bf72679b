"""Words that generated items are made of: common first names, made-up names, plain adjectives and nouns."""

from __future__ import annotations

from collections.abc import Callable

from agentflow.tasks.draws import Draws

_FIRST_NAMES = """
Adam Alma Anna Arne Aron Ben Bella Boris Bruno Carl Carla Celia Chloe Clara Cora Daisy Dana David Dora Dylan
Edgar Edith Ella Elsa Emil Emma Erik Ethan Eva Felix Fiona Flora Frank Fred Freya Gina Glen Grace Greta Hana
Harry Hazel Heidi Helen Henry Hugo Ian Ida Igor Ines Irene Iris Ivan Ivy Jack Jane Jonas Julia Karl Katya
Kevin Kira Klaus Lara Laura Lena Leo Liam Lilly Linda Louis Lucas Luna Mara Marco Maria Martin Max Maya Mia
Milo Mona Nadia Nils Nina Noah Nora Olaf Olga Oscar Otto Paula Pedro Peter Petra Philip Quinn Ralph Rita
Robin Rosa Ruben Ruth Sally Sam Sara Simon Sofia Stella Sven Tara Theo Thomas Tina Tobias Tom Ulla Vera
Victor Vincent Walter Wanda Willa Xenia Yara Yusuf Zara Zoe
"""

_ADJECTIVES = """
amber ancient blue bold brave bright broken brown calm clever cold crimson curly dark deep distant dry dusty
early empty fast fierce flat foggy frozen gentle gold golden green happy heavy hidden hollow humble icy
ivory jolly lazy little lonely loud lucky mellow misty modest noble odd olive orange pale plain polite proud
purple quick quiet rapid red rough royal rusty sandy scarlet sharp shiny silent silver simple sleepy slow
small smooth soft solid sour spicy stony strong sunny sweet swift tall tame tidy tiny warm wild windy wise
wooden yellow
"""

_NOUNS = """
acorn anchor apple arrow badger barrel basket beacon bell bridge bucket butter button cabin camel candle
canoe carpet castle cedar cherry circle clock cloud clover coffee comet copper cotton cradle desert dolphin
donkey dragon drum eagle engine falcon feather fiddle flute forest fountain garden garlic glove guitar
hammer harbor harvest helmet honey island jacket jungle kettle kitten ladder lantern lemon lizard magnet
maple marble meadow melon mirror mitten monkey mountain needle nickel oyster paddle palace parrot pebble
pepper piano pigeon pillow planet pocket potato pumpkin puzzle rabbit raven ribbon river rocket saddle
salmon shadow spider spoon squirrel stone tiger timber tractor tulip tunnel turtle valley velvet violin
wagon walnut whale willow window winter
"""

FIRST_NAMES: tuple[str, ...] = tuple(_FIRST_NAMES.split())
ADJECTIVES: tuple[str, ...] = tuple(_ADJECTIVES.split())
NOUNS: tuple[str, ...] = tuple(_NOUNS.split())

_ONSETS = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "k",
    "kl",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "z",
)
_VOWELS = ("a", "e", "i", "o", "u")
_ENDINGS = ("ck", "l", "m", "n", "nd", "r", "rt", "sk", "x", "z")


def made_up_name(draws: Draws) -> str:
    """Return a name of three syllables that nobody bears, such as "Dratovesk"; about 10 million of them."""
    start = "".join(draws.choice(_ONSETS) + draws.choice(_VOWELS) for _ in range(2))
    end = draws.choice(_ONSETS) + draws.choice(_VOWELS) + draws.choice(_ENDINGS)
    return (start + end).capitalize()


def unlike_names(count: int, draws: Draws) -> list[str]:
    """Return different first names, with different initials as long as there are enough of them.

    Look-alikes such as Mara and Maria would measure the model's care, not what reached it.
    """
    names = draws.shuffled(FIRST_NAMES)
    firsts = list({name[0]: name for name in names}.values())
    rest = [name for name in names if name not in firsts]
    return draws.shuffled((firsts + rest)[:count])


def distinct(count: int, make: Callable[[], str]) -> list[str]:
    """Return the first `count` different texts that `make` gives; it must have more than that to give."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[make()] = None
    return list(found)
