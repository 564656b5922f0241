"""What a register says of earlier epochs, read off client by client."""

from fedmf.client_bits import count_of, names, place


def attended(register):
    """Return in how many epochs before the current one each client took part; clients that never did are not in it."""
    found = {}
    for key, planes in register.planes.items():
        taken = 0
        for plane in planes:
            taken |= plane
        found |= {client: count_of(planes, place(client)[1]) for client in names(key, taken)}
    return found
