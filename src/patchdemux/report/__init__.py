"""Reading results: tables, plots, heat maps, and one self-contained page."""
