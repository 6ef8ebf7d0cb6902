r"""A value and what it is a value of: `50\%`, `5\text{ cm}`, `\$5`, `90^\circ`, `2.5` million, `52_8`.

Units are known by name: what they measure, and how many base units they are.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from archer.rewards.math.numeric import parse_number
from archer.rewards.math.text import squash, unwrapped


@dataclass(frozen=True)
class Unit:
    """A unit. Two quantities compare by value times factor if they measure the same; else they differ."""

    measures: str
    factor: Fraction = Fraction(1)

    def agrees(self, other: "Unit") -> bool:
        """Tell whether both may measure the same; one sign or name may stand for several things."""
        names = frozenset((self.measures, other.measures))
        return len(names) == 1 or names in _AMBIGUOUS


_TABLE: dict[str, tuple[str, str]] = {
    # names of one unit (without plural): what it measures, factor
    "mm millimeter millimetre": ("length", "1/1000"),
    "cm centimeter centimetre": ("length", "1/100"),
    "dm decimeter decimetre": ("length", "1/10"),
    "m meter metre": ("length", "1"),
    "km kilometer kilometre": ("length", "1000"),
    "in inch inche": ("inches", "1"),
    "ft foot feet": ("inches", "12"),
    "yd yard": ("inches", "36"),
    "mi mile": ("inches", "63360"),
    "mg milligram": ("mass", "1/1000"),
    "g gram": ("mass", "1"),
    "kg kilogram": ("mass", "1000"),
    "ton tonne": ("tons", "1"),
    "oz ounce": ("ounces", "1"),
    "lb lbs pound": ("ounces", "16"),
    "ml milliliter millilitre": ("volume", "1/1000"),
    "l liter litre": ("volume", "1"),
    "gallon gal": ("quarts", "4"),
    "quart qt": ("quarts", "1"),
    "s sec second": ("time", "1"),
    "min minute": ("time", "60"),
    "h hr hour": ("time", "3600"),
    "day": ("time", "86400"),
    "week": ("time", "604800"),
    "month": ("months", "1"),
    "year yr": ("months", "12"),
    "cent ¢": ("dollars", "1/100"),
    "dollar usd $": ("dollars", "1"),
    "euro eur €": ("euros", "1"),
    "gbp £": ("pounds sterling", "1"),
    "rupee rs inr ₹": ("rupees", "1"),
    "yen jpy": ("yen", "1"),
    "yuan rmb cny": ("yuan", "1"),
    "¥": ("yen or yuan", "1"),
    "degree deg": ("degrees", "1"),
    "rad radian": ("radians", "1"),
    "cc": ("length^3", "1/1000000"),
    "celsius centigrade": ("degrees Celsius", "1"),
    "fahrenheit": ("degrees Fahrenheit", "1"),
    "kelvin": ("kelvins", "1"),
}
_AMBIGUOUS = (
    frozenset(("degrees", "degrees Celsius")),
    frozenset(("degrees", "degrees Fahrenheit")),
    frozenset(("yen or yuan", "yen")),
    frozenset(("yen or yuan", "yuan")),
)
_UNITS = {
    name: Unit(measures, Fraction(factor))
    for names, (measures, factor) in _TABLE.items()
    for name in names.split()
}
DEGREES, RADIANS = _UNITS["degree"], _UNITS["radian"]
_SCALE_LETTERS = {"c": "celsius", "f": "fahrenheit", "k": "kelvin"}
_TEMPERATURE = re.compile(r"degrees? (?P<scale>[a-z]+)")
_LETTER_UNITS = frozenset("mgshlL")
_SPEEDS = {"mph": "mile/hour", "kmh": "km/hour", "kmph": "km/hour", "kph": "km/hour"}
_POWER = re.compile(r"\^\s*\{?\s*([23])\s*\}?$")
_WORD_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_GENERIC = ("unit", "units")  # say nothing, also as `square units`


def find_unit(name: str) -> Unit | None:
    """Return the unit of that name (`cm`, `square feet`, `km/h`, `miles per hour`, `m^2`), or None."""
    name = " ".join(name.lower().replace(".", " ").split())
    name = _SPEEDS.get(name, name).replace(" per ", "/")
    if temperature := _TEMPERATURE.fullmatch(name):
        return _UNITS.get(_SCALE_LETTERS.get(temperature["scale"], temperature["scale"]))
    if "/" in name:
        parts = [find_unit(part) for part in name.split("/")]
        if len(parts) != 2 or parts[0] is None or parts[1] is None:
            return None
        return Unit(f"{parts[0].measures}/{parts[1].measures}", parts[0].factor / parts[1].factor)
    power = _POWER.search(name)
    if power:
        return _raised(_POWER.sub("", name).strip(), int(power[1]))
    first, _, rest = name.partition(" ")
    if first in _WORD_POWERS and rest:
        return _raised(rest, _WORD_POWERS[first])
    return _named(name)


def _named(name: str) -> Unit | None:
    singular = name.removesuffix("s") if len(name) > 2 else name  # ms is no plural of m
    return _UNITS.get(name) or _UNITS.get(singular)


def _raised(name: str, exponent: int) -> Unit | None:
    unit = _named(name)
    return None if unit is None else Unit(f"{unit.measures}^{exponent}", unit.factor**exponent)


def noun(name: str) -> Unit:
    """Return what is counted, for a word that is no unit: apples are not pears."""
    words = name.lower().split()
    return Unit("noun " + " ".join(word.removesuffix("s") for word in words))


PERCENT = Unit("percent")

_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*per\s?cent\s*\}|(?<![A-Za-z\\])per\s?cent)$")
_DEGREES = re.compile(
    r"\s*(?:\^\\circ\s*(?:(?P<letter>[CFK])|\\text\s*\{\s*(?P<text>[CFK]|[A-Za-z]{4,})?\s*\})?"
    r"|\\text\s*\{\s*\^\\circ\s*(?P<within>[CFK])?\s*\})$"
)
_CODES = "USD|EUR|GBP|INR|Rs|JPY|CNY|RMB"
_CURRENCY = re.compile(
    rf"^(?P<sign>-?)\s*(?:(?:US)?\\?(?P<mark>[$€£₹¥])|(?P<code>{_CODES})\.?(?=[\s0-9])"
    rf"|\\text\s*\{{\s*(?:(?P<text>{_CODES})\.?|(?:US)?\\?(?P<inside>[$€£₹¥]))\s*\}})\s*"
)
_CURRENCY_AFTER = re.compile(r"\s*\\?(?P<mark>[$€£₹¥¢])$")
_TEXT_UNIT = re.compile(r"\s*\\text\s*\{(?P<name>[^{}\\]*)\}\s*(?P<power>\^\s*\{?\s*[23]\s*\}?)?$")
_BARE_UNIT = re.compile(r"(?P<gap>\s*)(?P<name>[A-Za-z][A-Za-z/ ]*)(?P<power>\^\s*\{?\s*[23]\s*\}?)?$")
_BASE = re.compile(
    r"(?P<bracket>\()?(?P<digits>[0-9][0-9A-F]*)(?(bracket)\))"
    r"(?:_\{?\(?(?:\\text\{(?:base ?\}?)?)?| ?(?:\\text\{)?\(?base ?\}?)"
    r"(?P<base>[0-9]{1,2}|[a-z]+)[)}]{0,3}$"
)
_MODULUS = re.compile(r"\\pmod\{([^{}]*)\}$")
_BASE_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_NO_NOUN = re.compile(
    r"\b(?:and|or|not|no|is|isn|are|isnt|arent|was|be|but|maybe|possibly|perhaps|probably|except|if|then|else|mod|to"
    r"|through|until|from|between|plus|minus|times|over|under|less|more|least|most|about|around|approximately|wrong"
    r"|right|true|false|dozen|half|twice|double|triple|negative|squared|cubed|factorial|either|neither|nor|any|all"
    r"|none|answer)\b",
    re.IGNORECASE,
)
_MAX_NOUN_WORDS = 4
_WORD, _BARE_WORD = re.compile(r"[A-Za-z]{2,}"), re.compile(r"[A-Za-z]{3,}")
_VOWEL = re.compile(r"[aeiouyAEIOUY]")


@dataclass(frozen=True)
class Quantity:
    """The text of a value, what it is multiplied by, and its unit, if it has one."""

    value: str
    scale: int = 1
    unit: Unit | None = None


def read_quantity(text: str) -> Quantity:
    """Split a tidy scalar into value and unit. What has no unit that can be recognised is all value."""
    for reader in (_with_modulus, _with_currency, _with_percent, _with_degrees, _with_base, _with_unit):
        quantity = reader(text)
        if quantity is not None:
            return quantity
    return _scaled(Quantity(text))


def read_quantities(first: str, second: str) -> tuple[Quantity, Quantity]:
    """Read two scalars that are to be compared.

    `5 m` alone may be five times m. Beside a quantity with a unit, or a second one written so, it is five
    metres.
    """
    quantities = read_quantity(first), read_quantity(second)
    units = [quantity.unit is not None for quantity in quantities]
    if all(units):
        return quantities
    lettered = with_letter_unit(first), with_letter_unit(second)
    if not any(units):
        a, b = lettered
        return (a, b) if a and b and first[-1] != "L" != second[-1] else quantities
    return (quantities[0] if units[0] else lettered[0] or quantities[0]), (
        quantities[1] if units[1] else lettered[1] or quantities[1]
    )


def with_letter_unit(text: str) -> Quantity | None:
    """Read a numeral with a unit of one letter: `5 m`, `2h`; None for anything else."""
    value, letter = text[:-1].strip(), text[-1:]
    if letter not in _LETTER_UNITS or parse_number(value) is None:
        return None
    return Quantity(value, unit=find_unit(letter))


def _with_currency(text: str) -> Quantity | None:
    before, after = _CURRENCY.match(text), _CURRENCY_AFTER.search(text)
    if before:
        name = before["mark"] or before["code"] or before["text"] or before["inside"]
        return _scaled(Quantity(before["sign"] + text[before.end() :], unit=find_unit(name)))
    if after and parse_number(text[: after.start()]):
        return Quantity(text[: after.start()], unit=find_unit(after["mark"]))
    return None


def _with_percent(text: str) -> Quantity | None:
    percent = _PERCENT.search(text)
    return Quantity(unwrapped(text[: percent.start()]), unit=PERCENT) if percent else None


def _with_degrees(text: str) -> Quantity | None:
    degrees = _DEGREES.search(text)
    if degrees is None:
        return None
    scale = degrees["letter"] or degrees["text"] or degrees["within"]
    unit = find_unit(f"degrees {scale}") if scale else DEGREES
    return Quantity(unwrapped(text[: degrees.start()]), unit=unit) if unit else None


def _with_modulus(text: str) -> Quantity | None:
    modulus = _MODULUS.search(text)
    return Quantity(text[: modulus.start()].strip(), unit=Unit(f"modulo {modulus[1]}")) if modulus else None


def _with_base(text: str) -> Quantity | None:
    base = _BASE.fullmatch(squash(text))
    if base is None:
        return None
    name = base["base"]
    number = _BASE_WORDS.index(name) + 2 if name in _BASE_WORDS else int(name) if name.isdigit() else 0
    if number > max(int(digit, 16) for digit in base["digits"]) and number > 1:
        return Quantity(base["digits"], unit=Unit(f"base {number}"))
    return None


def _with_unit(text: str) -> Quantity | None:
    match = _TEXT_UNIT.search(text) or _BARE_UNIT.search(text)
    if match is None or not match["name"].strip():
        return None
    value, name, power = unwrapped(text[: match.start()]), match["name"].strip(), match["power"] or ""
    bare = match.re is _BARE_UNIT
    if not value or (bare and parse_number(value) is None) or name.lower() in _SCALES:
        return None
    if name.lower().endswith(_GENERIC):
        return Quantity(value)
    unit = find_unit(name + power)
    if bare and len(name) == 1:
        return None  # a variable, not a unit
    if unit is None and (
        not _names_things(name, _BARE_WORD if bare else _WORD) or power or (bare and not match["gap"])
    ):
        return None
    return _scaled(Quantity(value, unit=unit or noun(name)))


def _names_things(name: str, sort: re.Pattern[str]) -> bool:
    words = name.split()
    sound = all(sort.fullmatch(word) and _VOWEL.search(word) for word in words)
    return sound and len(words) <= _MAX_NOUN_WORDS and not _NO_NOUN.search(name)


def _scaled(quantity: Quantity) -> Quantity:
    """Take a word like "million" off the end of the value."""
    for pattern in (_TEXT_UNIT, _BARE_UNIT):
        match = pattern.search(quantity.value)
        scale = _SCALES.get(match["name"].strip().lower()) if match and not match["power"] else None
        if match and scale and parse_number(quantity.value[: match.start()]):
            return Quantity(unwrapped(quantity.value[: match.start()]), scale, quantity.unit)
    return quantity
