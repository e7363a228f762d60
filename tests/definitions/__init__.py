"""The kinds of other projects that the chart makes objects of, as these projects define them."""
