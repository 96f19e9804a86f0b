"""jupyterlab_pages.py ADDRESS CHROMIUM PICTURE   opens JupyterLab in a browser, as a reader does

Runs all cells of notebook.ipynb, writes a picture of it, then interrupts the last cell of sleeping.ipynb by the button and
runs it on. Prints what the cells show.
"""
import sys

from playwright.sync_api import expect, sync_playwright

ADDRESS, CHROMIUM, PICTURE = sys.argv[1:]


def open_notebook(page, name):
    page.goto(f"{ADDRESS}/lab/tree/{name}?reset")
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    expect(page.locator(".jp-Toolbar-kernelName")).to_contain_text("Python 3", timeout=60_000)
    expect(page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']")).to_have_count(1, timeout=60_000)


def run_all(page):
    page.locator(".lm-MenuBar-itemLabel", has_text="Run").click()
    page.locator("[data-command='runmenu:run-all']").click()


with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 1000, "height": 1900}, device_scale_factor=1)
    page.set_default_timeout(120_000)
    # Which kernel, and whether Jupyter's news may be shown.
    page.add_locator_handler(page.locator(".jp-Dialog .jp-mod-accept"), lambda button: button.click())
    page.add_locator_handler(page.locator(".Toastify button", has_text="No").first, lambda button: button.click())
    open_notebook(page, "notebook.ipynb")
    run_all(page)
    code = page.locator(".jp-Notebook .jp-CodeCell")
    expect(code.last.locator(".jp-InputArea-prompt")).to_have_text("[8]:", timeout=60_000)
    page.keyboard.press("Control+b")  # the list of files
    page.locator(".jp-Notebook").evaluate("node => node.scrollTop = 0")
    page.locator(".jp-Notebook").screenshot(path=PICTURE)
    print(page.locator(".jp-Notebook").inner_text())

    open_notebook(page, "sleeping.ipynb")
    run_all(page)
    cells = page.locator(".jp-Notebook .jp-CodeCell")
    expect(cells.nth(1).locator(".jp-OutputArea-output").first).to_contain_text("asleep")
    page.locator("jp-button[data-command='notebook:interrupt-kernel'], [data-command='notebook:interrupt-kernel'] button").first.click()
    expect(cells.nth(1).locator(".jp-OutputArea-output").last).to_contain_text("KeyboardInterrupt")
    cells.nth(2).locator(".jp-InputArea-editor").click()
    page.keyboard.press("Shift+Enter")
    expect(cells.nth(2).locator(".jp-OutputArea-output").last).to_contain_text("[1] usable 1")
    print(cells.nth(2).inner_text())
    browser.close()
