"""Greets the guest over the control channel and answers one line over TCP.

Arguments: the address to listen on, and the control channel as fd:NUMBER.
"""

import socket
import sys

listener = socket.create_server((sys.argv[1], 7777))
control = socket.socket(fileno=int(sys.argv[2].removeprefix("fd:")))

lines = control.makefile("rw")
print("guest:", lines.readline().strip())
lines.write("port 7777\n")
lines.flush()

connection, address = listener.accept()
with connection, connection.makefile("rw") as stream:
    line = stream.readline()
    stream.write("polo: " + line)
print("answered", address[0])
