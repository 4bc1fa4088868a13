"""A plan as people read it: text for a terminal, and one self-contained HTML file. Decides nothing about a plan."""
