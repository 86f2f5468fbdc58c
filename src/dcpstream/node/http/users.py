"""Users and their roles over HTTP.

Users whom the node was started with are shown and not changed here. Source: Couchbase Server REST API, "Role-Based
Admin Access Control"; ns_server menelaus_web_rbac.erl (shapes and words).
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from dcpstream.errors import ConfigError
from dcpstream.node.engine import User
from dcpstream.node.engine.roles import EVERYWHERE, KINDS, Role, parse_roles
from dcpstream.node.http.access import forbidden
from dcpstream.node.http.page import LOGIN, USER, Route, Site, answer, done, fault, faults, form_of, note

MIN_PASSWORD_LENGTH = 6
"""The server's default policy."""
ADMIN_ROLES = frozenset(("admin", "security_admin"))
"""Who has one of these, or is to have it, is changed by those alone who may change administrators."""
_USERS = "/settings/rbac/users"


class UserPages:
    """The pages of users.

    Args:
        site: the node.
    """

    def __init__(self, site: Site) -> None:
        self._users = site.engine.users

    def routes(self) -> list[Route]:
        """The pages."""
        read, write = "users.read", "users.write"
        put = "make or change a user: `password`, `roles` (`data_reader[b:s:c],admin`), `name`"
        return [
            Route("GET", "/whoami", self._whoami, LOGIN, "who is logged in, with their roles"),
            Route("POST", "/controller/changePassword", self._password, LOGIN, "change one's own password: `password`"),
            Route("GET", _USERS, self._list, read, "all users"),
            Route("GET", _USERS + "/local", self._list, read, "the same: all users are local"),
            Route("GET", _USERS + "/external", self._none, read, "there are none"),
            Route("GET", _USERS + "/local/{name}", self._get, read, "one user"),
            Route("PUT", _USERS + "/local/{name}", self._put, write, put),
            Route("DELETE", _USERS + "/local/{name}", self._remove, write, "take a user away, at once"),
            Route("GET", "/settings/rbac/roles", self._roles, read, "roles that can be given"),
            Route("GET", "/settings/rbac/groups", self._none, read, "there are none"),
        ]

    async def _whoami(self, request: web.Request) -> web.Response:
        user = request[USER]
        domain = "admin" if user.is_configured and user.is_admin else "local"
        return answer({"id": user.name, "domain": domain, "roles": [role.to_json() for role in user.roles]})

    async def _list(self, _: web.Request) -> web.Response:
        return answer([_user_json(user) for user in self._users.all()])

    async def _get(self, request: web.Request) -> web.Response:
        user = self._users.find(request.match_info["name"])
        return answer(_user_json(user)) if user is not None else answer("Unknown user.", 404)

    async def _put(self, request: web.Request) -> web.Response:
        form, name = await form_of(request), request.match_info["name"]
        user, password = self._users.find(name), form.get("password") or None
        wrong = {}
        if user is None and password is None:
            wrong["password"] = "Password is required for new user."
        elif password is not None and len(password) < MIN_PASSWORD_LENGTH:
            wrong["password"] = f"The password must be at least {MIN_PASSWORD_LENGTH} characters long."
        roles: tuple[Role, ...] = ()
        try:
            # `[*]` is how the server writes a role for all buckets; a role that has no place has no brackets.
            roles = parse_roles(form.get("roles", ""))
        except ConfigError as error:
            wrong["roles"] = (
                "Cannot assign roles to user because the following roles are unknown, malformed or role parameters are "
                f"undefined: [{error.value}]"
            )
        if form.get("groups"):
            wrong["groups"] = f"Groups do not exist: {form['groups']}"
        if wrong:
            return faults(wrong)
        refused = self._refused(request, roles) or self._refused(request, user.roles if user is not None else ())
        if refused is not None:
            return refused
        try:
            self._users.put(name, password, roles, form.get("name", user.display_name if user is not None else ""))
        except ConfigError as error:
            return fault(400, str(error))
        note(request, "put user", name)
        return done()

    async def _remove(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        user = self._users.find(name)
        if user is None:
            return answer("Unknown user.", 404)
        refused = self._refused(request, user.roles)
        if refused is not None:
            return refused
        try:
            self._users.remove(user.name)
        except ConfigError as error:
            return fault(400, str(error))
        note(request, "removed user", name)
        return done()

    @staticmethod
    def _refused(request: web.Request, roles: tuple[Role, ...]) -> web.Response | None:
        if any(role.name in ADMIN_ROLES for role in roles) and not request[USER].may("admins.write"):
            return forbidden("admins.write")
        return None

    async def _password(self, request: web.Request) -> web.Response:
        password = (await form_of(request)).get("password", "")
        if len(password) < MIN_PASSWORD_LENGTH:
            text = f"The password must be at least {MIN_PASSWORD_LENGTH} characters long."
            return faults({"password": text})
        try:
            self._users.set_password(request[USER].name, password)
        except ConfigError as error:
            return fault(400, str(error))
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

    async def _none(self, _: web.Request) -> web.Response:
        return answer([])


def _user_json(user: User) -> dict[str, Any]:
    roles = [role.to_json() | {"origins": [{"type": "user"}]} for role in user.roles]
    content: dict[str, Any] = {"id": user.name, "domain": "local", "roles": roles, "groups": [], "external_groups": []}
    if user.display_name:
        content["name"] = user.display_name
    if user.credentials is None:
        content["passwordless"] = True
    return content
