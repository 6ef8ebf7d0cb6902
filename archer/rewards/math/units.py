"""Units of measurement by name: what they measure, and how many base units they are."""

import re
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Unit:
    """A unit. Two quantities compare by value times factor if they measure the same; else they differ."""

    measures: str
    factor: Fraction = Fraction(1)


_BASE: dict[str, tuple[str, str]] = {
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
    "yen yuan ¥": ("yen", "1"),
    "degree deg": ("degrees", "1"),
    "rad radian": ("radians", "1"),
}
_UNITS = {
    name: Unit(measures, Fraction(factor))
    for names, (measures, factor) in _BASE.items()
    for name in names.split()
}
DEGREES = _UNITS["degree"]
CURRENCIES = "$€£₹¥"
_SPEEDS = {"mph": "mile/hour", "kmh": "km/hour", "kmph": "km/hour", "kph": "km/hour"}
_POWER = re.compile(r"\^\s*\{?\s*([23])\s*\}?$")
_WORD_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_GENERIC = ("unit", "units")


def find_unit(name: str) -> Unit | None:
    """Return the unit of that name (`cm`, `square feet`, `km/h`, `miles per hour`, `m^2`), or None."""
    name = " ".join(name.lower().replace(".", " ").split())
    name = _SPEEDS.get(name, name).replace(" per ", "/")
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


def is_generic(name: str) -> bool:
    """Tell whether a unit's name says nothing, like `units` or `square units`."""
    return name.lower().endswith(_GENERIC)


def noun(name: str) -> Unit:
    """Return what is counted, for a word that is no unit: apples are not pears."""
    words = name.lower().split()
    return Unit("noun " + " ".join(word.removesuffix("s") for word in words))
