"""Pages of results: series, runs and a comparison → frozen values → one offline HTML file, or Markdown.

`page_data` makes the values, `render_page` the file; `environment` has the sections as Jinja macros for other pages.
"""

from madlite.reports.page.build import page_data
from madlite.reports.page.render import environment, payload, render_markdown, render_page
from madlite.reports.page.values import Page, ReferenceMark

__all__ = ["Page", "ReferenceMark", "environment", "page_data", "payload", "render_markdown", "render_page"]
