"""What people ask of an installed release: a command of vcuda, or the view behind the API server's proxy.

In: the words of a command, or a client and a token. Out: what was said, and a client that shows the token.
"""

import subprocess

from sandbox.cluster.client import Client
from tests.e2e.installed.release import NAMESPACE

VIEW = f"/api/v1/namespaces/{NAMESPACE}/services/https:vcuda-scheduler:https/proxy/view"
VIEW_TOKEN = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/vcuda-view/token"


def answer_to(command: list[str]) -> str:
    """Both outputs; before them the status in brackets, where it is not 0."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout if done.returncode == 0 else f"({done.returncode}) {done.stdout}"


def says_all(command: list[str], parts: list[str]) -> bool:
    text = answer_to(command)
    return all(part in text for part in parts)


def showing(client: Client, token: str) -> Client:
    """The same caller, who shows the scheduler this token through the API server's proxy."""
    return Client(client.server, client.pool, {**client.headers, "X-Vcuda-Token": token})
