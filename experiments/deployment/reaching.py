"""Why a node cannot take part, told apart: what stands between it and the SuperLink, as a sentence that says what to do.

Flower's SuperNode ends with the same words for a key that is not registered and for one whose old session is still open, and
without any where the clock is wrong. Here one signed question is asked before it starts that opens no session: to be
activated with a heartbeat that no SuperLink allows. Flower looks at the time first (HTTP 401), then for the key (2004), then
at the heartbeat (2003): who is told of the heartbeat is registered and has the right time. (tried with Flower 1.41)
"""

import datetime
import email.utils
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from experiments.deployment.flower_parts import UNACTIVATED, Answer, ask_activation

log = logging.getLogger(__name__)

AHEAD, BEHIND = 5, 305  # seconds by which a node's clock may differ from the server's: Flower's own
SESSION = 76  # exit code of a SuperNode whose key has another session at the SuperLink
OTHER_SESSION = (
    "the SuperLink refuses this node's key although it is registered: an earlier session of it is still open. One that was "
    "killed is closed after at most 60 seconds, and this node then goes on by itself. If this lasts longer, another process "
    "uses the same private_key: end it, or give each node a key of its own"
)
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 15.0  # seconds between two questions
_NOT_YET, _EXPIRED, _OTHER_NAMES = 9, 10, (62, 64)  # OpenSSL's X509_V_ERR_... of a certificate
_REGISTERED = 2003  # Flower's code for a heartbeat that is not allowed
_BEHIND_PROXY = (502, 503, 504)


@dataclass(frozen=True)
class Fault:
    """What is wrong, by a name of its own, and the sentence for the node's operator."""

    kind: str
    text: str


@dataclass(frozen=True)
class Way:
    """How a node reaches the SuperLink: its address, the authority's file, and the file of the node's key."""

    superlink: str
    root_certificates: str
    private_key: str

    @property
    def host(self) -> str:
        """The name or address of the machine."""
        return self.superlink.rpartition(":")[0]


def fault_on(way: Way, clock: Callable[[], float] = time.time) -> Fault | None:
    """Return what keeps the node with this way from taking part, None where nothing does but perhaps an old session."""
    try:
        answer = ask_activation(way.superlink, Path(way.root_certificates), Path(way.private_key))
    except httpx.HTTPError as error:
        return _of_connection(way, error)
    return _of_answer(way, answer, clock())


def wait_until_reached(way: Way, sleep: Callable[[float], None] = time.sleep) -> None:
    """Return when nothing is wrong with the way; what is wrong is logged once, and when it is over."""
    said, wait = "", _FIRST_WAIT
    while (fault := fault_on(way)) is not None:
        if fault.kind != said:
            log.error("%s (it is tried again until it works)", fault.text)
            said = fault.kind
        sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)
    if said:
        log.info("the SuperLink at %s now answers this node", way.superlink)


def _of_connection(way: Way, error: httpx.HTTPError) -> Fault:
    """Return the fault behind what a connection ended with: the first cause that says more than Flower's client."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _of_certificate(way, cause)
        if isinstance(cause, ssl.SSLError):
            return Fault(
                "no TLS",
                f"superlink is {way.superlink}, which does not speak TLS as a SuperLink does ({cause.reason}); check the "
                "port, and ask the server's operator which one nodes use.",
            )
        if isinstance(cause, socket.gaierror):
            return Fault(
                "unknown name",
                f"superlink is {way.superlink}, and no address is known for {way.host} ({cause.strerror}); check the name, and "
                "this machine's DNS.",
            )
        if isinstance(cause, ConnectionRefusedError):
            return Fault(
                "refused",
                f"superlink is {way.superlink}, where nothing listens (connection refused); check the port, and ask the "
                "server's operator whether the server runs.",
            )
    if isinstance(error, httpx.TimeoutException):
        return Fault(
            "no answer",
            f"superlink is {way.superlink}, which does not answer in time; check the address, and that this machine's "
            "firewall lets it through.",
        )
    return Fault(
        "unreachable",
        f"superlink is {way.superlink}, which cannot be reached ({error or type(error).__name__}); check the "
        "address and this machine's network.",
    )


def _of_certificate(way: Way, error: ssl.SSLCertVerificationError) -> Fault:
    shown = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    if error.verify_code in (_EXPIRED, _NOT_YET):
        state = "has expired" if error.verify_code == _EXPIRED else "is not valid yet"
        return Fault(
            f"certificate {error.verify_code}",
            f"the certificate of {way.superlink}, or its authority's in {way.root_certificates}, {state} for this machine's "
            f"clock, which shows {shown}: where that is right, the server's operator must renew it; else set the clock.",
        )
    if error.verify_code in _OTHER_NAMES:
        return Fault(
            "other name",
            f"the certificate of {way.superlink} is for another name than {way.host}; use the name that the server's operator "
            "gave, or let them make a certificate for this one.",
        )
    return Fault(
        "wrong authority",
        f"the certificate of {way.superlink} was not signed by the authority in {way.root_certificates} "
        f"({error.verify_message}); get the present ca.crt from the server's operator by a way that you trust. If you have it, "
        "somebody else answers in the server's place.",
    )


def _of_answer(way: Way, answer: Answer, now: float) -> Fault | None:
    if answer.code == _REGISTERED:
        return None
    if answer.status == httpx.codes.UNAUTHORIZED:
        return Fault("clock", _of_clock(way, answer, now))
    if answer.code == UNACTIVATED:
        return Fault(
            "unregistered",
            f"the SuperLink at {way.superlink} does not know this node's key; send {way.private_key}.pub to the server's "
            "operator, who registers it (flwr supernode register). A SuperLink that lost its database has lost its keys too.",
        )
    if answer.status in _BEHIND_PROXY:
        return Fault(
            "behind the proxy",
            f"the proxy at {way.superlink} answers, and the SuperLink behind it does not (HTTP {answer.status}); the server's "
            "operator must start it.",
        )
    return Fault(
        f"answer {answer.status} {answer.code}",
        f"superlink is {way.superlink}, which answers as no SuperLink of this version of Flower does (HTTP {answer.status}); "
        "check host and port, and ask the server's operator which version it runs.",
    )


def _of_clock(way: Way, answer: Answer, now: float) -> str:
    """Return by how much this machine's clock is off, by the date of the server's answer."""
    try:
        theirs = email.utils.parsedate_to_datetime(answer.date).timestamp()
    except (TypeError, ValueError):
        said = "shows another time than the server's"
    else:
        off = round(now - theirs)
        said = f"is {abs(off)} seconds {'ahead of' if off > 0 else 'behind'} the server's"
    return (
        f"the SuperLink at {way.superlink} refuses what this node signs: this machine's clock {said}, and Flower allows "
        f"{AHEAD} seconds ahead and {BEHIND} behind; set the clock (NTP), here or there, whichever is wrong."
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
