"""Pages of users, groups and roles.

Users from the node's start are shown and cannot be changed here. Source: Couchbase Server REST API, "Role-Based
Admin Access Control"; ns_server menelaus_web_rbac.erl (shapes and words).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from aiohttp import web

from dcpstream.errors import ConfigError
from dcpstream_node.engine import Group, User
from dcpstream_node.engine.access.roles import EVERYWHERE, KINDS, Role, parse_roles
from dcpstream_node.engine.access.users import DOMAINS
from dcpstream_node.rest.authorization import forbidden
from dcpstream_node.rest.site import LOGIN, USER, Route, Site, answer, done, faults, form_of, note

MIN_PASSWORD_LENGTH = 6
"""The server's default policy."""
_TOO_SHORT = f"The password must be at least {MIN_PASSWORD_LENGTH} characters long."
ADMIN_ROLES = frozenset(("admin", "security_admin"))
"""Roles that only users with the right `admins.write` may give, or take away."""
_USERS = "/settings/rbac/users"
_GROUPS = "/settings/rbac/groups"
_GROUP_FIELDS = frozenset(("roles", "description", "ldap_group_ref"))


class UserPages:
    """The pages of users."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._users = site.engine.users

    def routes(self) -> list[Route]:
        """The pages."""
        read, write = "users.read", "users.write"
        put = "make or change a user: `password`, `roles` (`data_reader[b:s:c],admin`), `groups`, `name`"
        put_group = "make or change a group: `roles`, `description`, `ldap_group_ref`"
        return [
            Route("GET", "/whoami", self._whoami, LOGIN, "who is logged in, with their roles"),
            Route("POST", "/controller/changePassword", self._password, LOGIN, "change one's own password: `password`"),
            Route("GET", _USERS, partial(self._list, DOMAINS), read, "all users"),
            Route("GET", _USERS + "/local", partial(self._list, ("local",)), read, "users whose passwords are here"),
            Route("GET", _USERS + "/external", partial(self._list, ("external",)), read, "users as LDAP has them"),
            Route("GET", _USERS + "/local/{name}", partial(self._get, "local"), read, "one user"),
            Route("GET", _USERS + "/external/{name}", partial(self._get, "external"), read, "one user"),
            Route("PUT", _USERS + "/local/{name}", self._put, write, put),
            Route("DELETE", _USERS + "/local/{name}", self._remove, write, "take a user away, at once"),
            Route("GET", "/settings/rbac/roles", self._roles, read, "roles that can be given"),
            Route("GET", _GROUPS, self._groups, read, "all groups"),
            Route("GET", _GROUPS + "/{name}", self._group, read, "one group"),
            Route("PUT", _GROUPS + "/{name}", self._put_group, write, put_group),
            Route("DELETE", _GROUPS + "/{name}", self._remove_group, write, "take a group away from all, at once"),
        ]

    async def _whoami(self, request: web.Request) -> web.Response:
        user = request[USER]
        domain = "admin" if user.is_configured and user.is_admin else user.domain
        return answer({"id": user.name, "domain": domain, "roles": [role.to_json() for role in user.origins()]})

    async def _list(self, domains: tuple[str, ...], _: web.Request) -> web.Response:
        return answer([_user_json(user) for user in self._users.all() if user.domain in domains])

    async def _get(self, domain: str, request: web.Request) -> web.Response:
        user = self._users.find(request.match_info["name"])
        if user is None or user.domain != domain:
            return answer("Unknown user.", 404)
        return answer(_user_json(user))

    async def _put(self, request: web.Request) -> web.Response:
        form, name = await form_of(request), request.match_info["name"]
        user, password = self._users.find(name), form.get("password") or None
        wrong = {}
        if user is None and password is None:
            wrong["password"] = "Password is required for new user."
        elif password is not None and len(password) < MIN_PASSWORD_LENGTH:
            wrong["password"] = _TOO_SHORT
        roles, refusal = _roles_of(form)
        if refusal:
            wrong["roles"] = refusal
        joined = [part.strip() for part in form.get("groups", "").split(",") if part.strip()]
        groups = [self._users.find_group(group) for group in joined]
        missing = [group for group, found in zip(joined, groups, strict=True) if found is None]
        if missing:
            wrong["groups"] = f"Groups do not exist: {','.join(missing)}"
        if wrong:
            return faults(wrong)
        given = [role for group in groups if group is not None for role in group.roles]
        refused = self._refused(request, [*roles, *given, *(user.origins() if user is not None else ())])
        if refused is not None:
            return refused
        title = form.get("name", user.display_name if user is not None else "")
        if self._site.manager is not None:
            texts = [str(role) for role in roles]
            await self._site.order(
                "put_user", name=name, password=password, roles=texts, display_name=title, groups=joined
            )
        else:
            self._users.put(name, password, roles, title, joined)
        note(request, "put user", name)
        return done()

    async def _remove(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        user = self._users.find(name)
        if user is None:
            return answer("Unknown user.", 404)
        refused = self._refused(request, user.origins())
        if refused is not None:
            return refused
        if self._site.manager is not None:
            await self._site.order("remove_user", name=user.name)
        else:
            self._users.remove(user.name)
        note(request, "removed user", name)
        return done()

    @staticmethod
    def _refused(request: web.Request, roles: Iterable[Role]) -> web.Response | None:
        if any(role.name in ADMIN_ROLES for role in roles) and not request[USER].may("admins.write"):
            return forbidden("admins.write")
        return None

    async def _groups(self, _: web.Request) -> web.Response:
        return answer([_group_json(group) for group in self._users.groups()])

    async def _group(self, request: web.Request) -> web.Response:
        group = self._users.find_group(request.match_info["name"])
        return answer(_group_json(group)) if group is not None else answer("Unknown group.", 404)

    async def _put_group(self, request: web.Request) -> web.Response:
        form, name = await form_of(request), request.match_info["name"]
        present = self._users.find_group(name)
        wrong = dict.fromkeys(form.keys() - _GROUP_FIELDS, "Unsupported key")
        roles, refusal = _roles_of(form)
        if "roles" not in form:
            wrong["roles"] = "The value must be supplied"
        elif refusal:
            wrong["roles"] = refusal
        if wrong:
            return faults(wrong)
        refused = self._refused(request, [*roles, *(present.roles if present is not None else ())])
        if refused is not None:
            return refused
        texts = {field: form.get(field) for field in ("description", "ldap_group_ref")}
        group = Group(name=name, roles=roles, **texts)
        if self._site.manager is not None:
            await self._site.order("put_group", name=name, data=group.to_json())
        else:
            self._users.put_group(group)
        note(request, "put group", name)
        return done()

    async def _remove_group(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        group = self._users.find_group(name)
        if group is None:
            return answer("Group was not found.", 404)
        refused = self._refused(request, group.roles)
        if refused is not None:
            return refused
        if self._site.manager is not None:
            await self._site.order("remove_group", name=name)
        else:
            self._users.remove_group(name)
        note(request, "removed group", name)
        return done()

    async def _password(self, request: web.Request) -> web.Response:
        password = (await form_of(request)).get("password", "")
        if len(password) < MIN_PASSWORD_LENGTH:
            return faults({"password": _TOO_SHORT})
        if self._site.manager is not None:
            await self._site.order("set_password", name=request[USER].name, password=password)
        else:
            self._users.set_password(request[USER].name, password)
        return done()

    async def _roles(self, _: web.Request) -> web.Response:
        names = ("bucket_name", "scope_name", "collection_name")
        return answer(
            [
                {"role": kind.name, "name": kind.title, "desc": kind.description, "ce": False}
                | dict.fromkeys(names[: kind.depth], EVERYWHERE)
                for kind in KINDS.values()
            ]
        )


def _roles_of(form: Mapping[str, str]) -> tuple[tuple[Role, ...], str]:
    """The roles of a form, and its error; empty if there is none."""
    try:
        return parse_roles(form.get("roles", "")), ""
    except ConfigError as error:
        why = "the following roles are unknown, malformed or role parameters are undefined"
        return (), f"Cannot assign roles to user because {why}: [{error.value}]"


def _user_json(user: User) -> dict[str, Any]:
    roles = [
        role.to_json() | {"origins": [{"type": "group", "name": name} if name else {"type": "user"} for name in names]}
        for role, names in user.origins().items()
    ]
    content: dict[str, Any] = {"id": user.name, "domain": user.domain, "roles": roles}
    content |= {"groups": [group.name for group in user.groups], "external_groups": []}
    # Also without a name: the Rust SDK reads no list in which one is missing.
    content["name"] = user.display_name
    if user.credentials is None:
        content["passwordless"] = True
    return content


def _group_json(group: Group) -> dict[str, Any]:
    content: dict[str, Any] = {"id": group.name, "roles": [role.to_json() for role in group.roles]}
    texts = {"ldap_group_ref": group.ldap_group_ref, "description": group.description}
    return content | {field: text for field, text in texts.items() if text is not None}
