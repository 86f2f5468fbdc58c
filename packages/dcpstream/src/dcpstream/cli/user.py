"""`dcpstream user`: make, list and drop users, over the management port."""

from __future__ import annotations

import json
from typing import Any

import click

from dcpstream.cli.exits import OK
from dcpstream.cli.management import Management, management_options, path_of
from dcpstream.cli.output import report

USERS = "/settings/rbac/users"


@click.group("user")
def user_command() -> None:
    """Make, list and drop the users of any node, ours or a Couchbase server's."""


@user_command.command("list")
@management_options(Management)
def list_command(cluster: Management, as_json: bool) -> int:
    """Print the users with their roles."""
    users = [
        {"name": user["id"], "roles": sorted({_role(each) for each in user["roles"]})} for user in cluster.get(USERS)
    ]
    if as_json:
        click.echo(json.dumps(users))
        return OK
    width = max((len(user["name"]) for user in users), default=0)
    for user in users:
        click.echo(f"{user['name']:<{width}}  {' '.join(user['roles'])}".rstrip())
    return OK


@user_command.command("roles")
@management_options(Management)
def roles_command(cluster: Management, as_json: bool) -> int:
    """Print the roles that can be given; those with brackets need a bucket, [*] for all."""
    roles = cluster.get("/settings/rbac/roles")
    if as_json:
        click.echo(json.dumps(roles))
        return OK
    for name in sorted({str(role["role"]) + ("[…]" if "bucket_name" in role else "") for role in roles}):
        click.echo(name)
    return OK


@user_command.command("create")
@click.argument("name")
@management_options(Management)
@click.option(
    "--role",
    "roles",
    multiple=True,
    help="Such as data_dcp_reader[default], or data_reader[default:shop:orders]; may be repeated.",
)
@click.option(
    "--new-password",
    envvar="DCPSTREAM_NEW_PASSWORD",
    prompt="Password of the new user",
    hide_input=True,
    confirmation_prompt=True,
    help="Asked for if it is not given; the variable DCPSTREAM_NEW_PASSWORD hides it from `ps`.",
)
def create_command(name: str, cluster: Management, as_json: bool, roles: tuple[str, ...], new_password: str) -> int:
    """Make a user, or give one that exists this password and exactly these roles."""
    cluster.put(f"{USERS}/local{path_of(name)}", {"password": new_password, "roles": ",".join(roles)})
    return report(f"user {name} made", as_json=as_json)


@user_command.command("drop")
@click.argument("name")
@management_options(Management)
def drop_command(name: str, cluster: Management, as_json: bool) -> int:
    """Take a user away, at once."""
    cluster.delete(f"{USERS}/local{path_of(name)}")
    return report(f"user {name} dropped", as_json=as_json)


def _role(role: dict[str, Any]) -> str:
    """A role as it is written on the command line."""
    place = [str(role[name]) for name in ("bucket_name", "scope_name", "collection_name") if role.get(name)]
    while place and place[-1] == "*" and len(place) > 1:
        place.pop()
    return f"{role['role']}[{':'.join(place)}]" if place else str(role["role"])
