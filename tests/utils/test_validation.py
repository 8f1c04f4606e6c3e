"""What is said of a value of another type than annotated."""

from __future__ import annotations

import pytest
import yaml

from performer_string.utils.validation import check_type


@pytest.mark.parametrize("text", ["2e-1", "1.0e5", "2.5e3", "1E-3", "1e-07", "3e20", "0.2", "7"])
def test_a_number_that_yaml_reads_as_text_is_named_as_it_reads_one(text):
    with pytest.raises(ValueError, match=r"rate must be float, .* as text: write ") as raised:
        check_type("rate", text, float)
    assert yaml.safe_load(str(raised.value).rpartition("write ")[2].rstrip(".")) == float(text)


def test_a_whole_number_is_named_as_one():
    with pytest.raises(ValueError, match=r"as text: write 1000\.$"):
        check_type("steps", "1e3", int)


@pytest.mark.parametrize(("text", "kind"), [("many", float), ("nan", float), ("1.5", int), ("1e5", bool)])
def test_other_values_have_no_such_hint(text, kind):
    with pytest.raises(ValueError, match=r"must be \w+, not [^.]*(1\.5')?\.$"):
        check_type("rate", text, kind)
