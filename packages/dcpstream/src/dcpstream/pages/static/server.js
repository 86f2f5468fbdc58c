// Who answers this page's requests, as sentences about it begin: "The node".
export const SERVER = document.body.dataset.server;
export const PING = location.origin + document.body.dataset.ping;
