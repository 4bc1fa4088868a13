"""Plans, bundles, and jobs as people read them: explanations, text for a terminal, and one self-contained HTML file."""
