from __future__ import annotations

from gradwire.page.markup import Markup, element, together

EVIL = "<script>&\"'"
SAFE = "&lt;script&gt;&amp;&quot;&#x27;"


def test_text_and_attributes_are_escaped_and_elements_are_not() -> None:
    assert element("p", EVIL, title=EVIL) == f'<p title="{SAFE}">{SAFE}</p>'
    assert element("p", element("b", "1 < 2"), " & more") == "<p><b>1 &lt; 2</b> &amp; more</p>"
    assert together("a<", Markup("<br>"), between=">") == "a&lt;><br>"


def test_names_of_attributes_and_elements_without_an_end() -> None:
    assert element("meta", http_equiv="x", name_="y") == '<meta http-equiv="x" name="y">'
    assert element("button", "go", hidden="", class_="a") == '<button hidden class="a">go</button>'
