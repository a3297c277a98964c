from gradwire.cli.nearest import suggestion


def test_only_a_near_name_is_suggested() -> None:
    known = ["plan", "profile", "train"]
    assert suggestion("trane", known) == " (did you mean 'train'?)"
    assert suggestion("PLAN", known) == " (did you mean 'plan'?)"
    assert suggestion("fly", known) == suggestion("", known) == suggestion("plan", []) == ""
