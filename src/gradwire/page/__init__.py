"""What a run leaves for people: one HTML file beside its record, which loads nothing from anywhere.

The same record gives the same bytes: no time, no path, and no random name is in the page.
"""

from gradwire.page.beside import beside, check_page, write_page
from gradwire.page.picture import Picture
from gradwire.page.report import Report, report_page

__all__ = ["Picture", "Report", "beside", "check_page", "report_page", "write_page"]
