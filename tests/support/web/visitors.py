"""Visitors of a dashboard without a browser: each keeps its cookies, and follows no redirect."""

import asyncio
import re

import httpx


class DashboardVisitor:
    """Sends requests to an ASGI application from the address ``peer``."""

    def __init__(self, app, *, host="127.0.0.1", peer="127.0.0.1", headers=()):
        self.cookies = httpx.Cookies()
        self._app = app
        self._base = f"http://{host}"
        self._peer = peer
        self._headers = dict(headers)

    def get(self, path, **options):
        return self.send("GET", path, **options)

    def post(self, path, data, **options):
        return self.send("POST", path, data=data, **options)

    def send(self, method, path, headers=(), **options):
        async def sent():
            transport = httpx.ASGITransport(self._app, client=(self._peer, 1234))
            async with httpx.AsyncClient(transport=transport, base_url=self._base, cookies=self.cookies) as client:
                answer = await client.request(method, path, headers={**self._headers, **dict(headers)}, **options)
                self.cookies = client.cookies
                return answer

        return asyncio.run(sent())

    def sign_in(self, token, name="Ada"):
        answer = self.post("/sign-in", {"token": token, "name": name})
        assert answer.status_code == 303, answer.text

    def form(self, path, **options):
        """Return the hidden fields of the last form of a page."""
        text = self.get(path, **options).text
        last = text.split('method="post" action="/act"')[1]
        return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', last.split("</form>")[0]))
