"""Pages of results: series, runs and a comparison → frozen values → one offline HTML file, or Markdown."""
