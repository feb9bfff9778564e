/* What rdma_cm tells of ids. No connection here has a QP: their numbers are all that is said of these. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../abuse/check.h"

/* What a program waits for that has come, or fails. */
enum { PATIENCE_MS = 30000 };

static struct rdma_event_channel *servers, *clients;

static struct sockaddr_in at(const char *address, uint16_t port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	inet_pton(AF_INET, address, &to.sin_addr);
	return to;
}

/* What an address of either version is, in room for both. */
static struct sockaddr_storage anywhere(const char *address, uint16_t port)
{
	struct sockaddr_storage to = { 0 };
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&to;
	if (!strchr(address, ':')) {
		*(struct sockaddr_in *)&to = at(address, port);
		return to;
	}
	*v6 = (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = htons(port) };
	inet_pton(AF_INET6, address, &v6->sin6_addr);
	return to;
}

/* Whether an address is this one, and written so. */
static int is_at(const struct sockaddr *found, const char *address)
{
	char text[INET6_ADDRSTRLEN];
	const void *bytes = found->sa_family == AF_INET ? (const void *)&((const struct sockaddr_in *)found)->sin_addr :
							  &((const struct sockaddr_in6 *)found)->sin6_addr;
	return inet_ntop(found->sa_family, bytes, text, sizeof(text)) && !strcmp(text, address);
}

static struct rdma_cm_id *id_on(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id;
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP)) {
		perror("rdma_create_id");
		exit(2);
	}
	return id;
}

/* A listener; on any port if it is 0. */
static struct rdma_cm_id *listener(const char *address, uint16_t port, int backlog)
{
	struct rdma_cm_id *id = id_on(servers);
	struct sockaddr_storage own = anywhere(address, port);
	CODE(rdma_bind_addr(id, (struct sockaddr *)&own), 0);
	CODE(rdma_listen(id, backlog), 0);
	return id;
}

static uint16_t port_of(struct rdma_cm_id *id)
{
	return ntohs(rdma_get_src_port(id));
}

/* The next event of a channel, which is of a kind, and acknowledged: what it says of its id stays. */
static struct rdma_cm_event next(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event, found;
	struct pollfd comes = { channel->fd, POLLIN };
	if (poll(&comes, 1, PATIENCE_MS) != 1 || rdma_get_cm_event(channel, &event)) {
		printf("no %s comes\n", rdma_event_str(kind));
		exit(2);
	}
	found = *event;
	rdma_ack_cm_event(event);
	if (found.event != kind) {
		printf("%s, not %s\n", rdma_event_str(found.event), rdma_event_str(kind));
		exit(2);
	}
	return found;
}

/* An id asks for a connection, from an address that it names or from any. */
static void asks_from(struct rdma_cm_id *id, const char *named, const char *address, uint16_t port)
{
	struct sockaddr_storage to = anywhere(address, port), own;
	if (named)
		own = anywhere(named, 0);
	CODE(rdma_resolve_addr(id, named ? (struct sockaddr *)&own : NULL, (struct sockaddr *)&to, 1000), 0);
	next(clients, RDMA_CM_EVENT_ADDR_RESOLVED);
	CODE(rdma_resolve_route(id, 1000), 0);
	next(clients, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CODE(id->route.path_rec->rate, IBV_RATE_100_GBPS);
	struct rdma_conn_param param = { .retry_count = 7, .qp_num = 0x111 };
	CODE(rdma_connect(id, &param), 0);
}

/* An id that asks for a connection. */
static struct rdma_cm_id *asks(const char *address, uint16_t port)
{
	struct rdma_cm_id *id = id_on(clients);
	asks_from(id, NULL, address, port);
	return id;
}

static void accepted(struct rdma_cm_id *request, struct rdma_cm_id *id)
{
	struct rdma_conn_param param = { .qp_num = 0x222 };
	CODE(rdma_accept(request, &param), 0);
	CODE(next(clients, RDMA_CM_EVENT_CONNECT_RESPONSE).id == id, 1);
	CODE(rdma_establish(id), 0);
	CODE(next(servers, RDMA_CM_EVENT_ESTABLISHED).id == request, 1);
}

/* A listener that goes takes with it only the requests that nobody took. */
static void taken(void)
{
	struct rdma_cm_id *listens = listener("127.0.0.1", 0, 8);
	struct rdma_cm_id *first = asks("127.0.0.1", port_of(listens));
	struct rdma_cm_id *request = next(servers, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	struct rdma_cm_id *second = asks("127.0.0.1", port_of(listens));
	struct pollfd comes = { servers->fd, POLLIN };
	CODE(poll(&comes, 1, PATIENCE_MS), 1);
	CODE(rdma_destroy_id(listens), 0);
	struct rdma_cm_event refused = next(clients, RDMA_CM_EVENT_REJECTED);
	CODE(refused.id == second, 1);
	CODE(refused.status, 28);
	/* Nothing of it is under way, and to end it changes nothing. */
	CODE(rdma_disconnect(first), 0);
	accepted(request, first);
	CODE(rdma_destroy_id(request), 0);
	next(clients, RDMA_CM_EVENT_DISCONNECTED);
	CODE(rdma_destroy_id(first), 0);
	CODE(rdma_destroy_id(second), 0);
}

static void backlog(void)
{
	enum { MANY = 4 };
	struct rdma_cm_id *listens = listener("127.0.0.1", 0, 1), *ids[MANY], *requests[MANY];
	for (int which = 0; which < MANY; which++) {
		ids[which] = asks("127.0.0.1", port_of(listens));
		requests[which] = next(servers, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	}
	struct rdma_cm_id *waits = asks("127.0.0.1", port_of(listens));
	struct rdma_cm_id *more = asks("127.0.0.1", port_of(listens));
	CODE(next(clients, RDMA_CM_EVENT_REJECTED).id == more, 1);
	next(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
	for (int which = 0; which < MANY; which++) {
		accepted(requests[which], ids[which]);
		CODE(rdma_destroy_id(requests[which]), 0);
		next(clients, RDMA_CM_EVENT_DISCONNECTED);
		CODE(rdma_destroy_id(ids[which]), 0);
	}
	CODE(rdma_destroy_id(waits), 0);
	CODE(rdma_destroy_id(more), 0);
}

/* TIMEWAIT_EXIT follows DISCONNECTED alone: what was refused, by whichever end, would have it first. */
static void over(void)
{
	struct rdma_cm_id *listens = listener("127.0.0.1", 0, 8);
	struct rdma_cm_id *refused = asks("127.0.0.1", port_of(listens));
	struct rdma_cm_id *request = next(servers, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	CODE(rdma_reject(request, NULL, 0), 0);
	CODE(next(clients, RDMA_CM_EVENT_REJECTED).id == refused, 1);
	struct rdma_cm_id *refuses = asks("127.0.0.1", port_of(listens));
	struct rdma_cm_id *answers = next(servers, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	struct rdma_conn_param param = { .qp_num = 0x222 };
	CODE(rdma_accept(answers, &param), 0);
	next(clients, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CODE(rdma_reject(refuses, NULL, 0), 0);
	CODE(next(servers, RDMA_CM_EVENT_REJECTED).id == answers, 1);
	struct rdma_cm_id *id = asks("127.0.0.1", port_of(listens));
	struct rdma_cm_id *other = next(servers, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	accepted(other, id);
	CODE(rdma_disconnect(id), 0);
	CODE(next(clients, RDMA_CM_EVENT_DISCONNECTED).id == id, 1);
	CODE(next(servers, RDMA_CM_EVENT_DISCONNECTED).id == other, 1);
	CODE(next(clients, RDMA_CM_EVENT_TIMEWAIT_EXIT).id == id, 1);
	CODE(next(servers, RDMA_CM_EVENT_TIMEWAIT_EXIT).id == other, 1);
}

/* Both ends of what an id asks for, which is from an address. */
static void is_from(struct rdma_cm_id *id, const char *named, const char *asked, const char *from)
{
	struct rdma_cm_id *listens = listener(asked, 0, 8);
	asks_from(id, named, asked, port_of(listens));
	struct rdma_cm_id *request = next(servers, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	CODE(is_at(rdma_get_local_addr(id), from), 1);
	CODE(is_at(rdma_get_peer_addr(request), from), 1);
	CODE(rdma_get_dst_port(request), rdma_get_src_port(id));
	CODE(is_at(rdma_get_local_addr(request), asked), 1);
	CODE(rdma_destroy_id(request), 0);
	CODE(next(clients, RDMA_CM_EVENT_REJECTED).id == id, 1);
	CODE(rdma_destroy_id(id) | rdma_destroy_id(listens), 0);
}

static void source(const char *asked, const char *from)
{
	is_from(id_on(clients), NULL, asked, from);
}

/* Who asks for an address of loopback and names none itself is told to have 127.0.0.1, and so is the other end. An address of
   IPv4 that is written as one of IPv6 is the same. */
static void sources(void)
{
	source("127.0.0.5", "127.0.0.1");
	source("::ffff:127.0.0.5", "::ffff:127.0.0.1");
	is_from(id_on(clients), "::ffff:127.0.0.7", "::ffff:127.0.0.5", "::ffff:127.0.0.7");
	is_from(id_on(clients), "::ffff:0.0.0.0", "::ffff:127.0.0.5", "::ffff:127.0.0.1");
	struct sockaddr_storage all = anywhere("::ffff:0.0.0.0", 0);
	struct rdma_cm_id *id = id_on(clients);
	CODE(rdma_bind_addr(id, (struct sockaddr *)&all), 0);
	is_from(id, NULL, "::ffff:127.0.0.5", "::ffff:127.0.0.1");
}

/* Where an interface has several addresses of one network, who asks for any is told to have the first, as the routes say. */
static void further(void)
{
	const char *first = getenv("FIRST"), *second = getenv("SECOND");
	char first_as_v6[INET6_ADDRSTRLEN], second_as_v6[INET6_ADDRSTRLEN];
	snprintf(first_as_v6, sizeof(first_as_v6), "::ffff:%s", first);
	snprintf(second_as_v6, sizeof(second_as_v6), "::ffff:%s", second);
	source(second, first);
	source(first, first);
	source(second_as_v6, first_as_v6);
	is_from(id_on(clients), second_as_v6, first_as_v6, second_as_v6);
}

static void addresses(void)
{
	struct rdma_cm_id *near = listener("127.0.0.1", 0, 8);
	struct rdma_cm_id *far = listener("127.0.0.2", port_of(near), 8);
	struct rdma_cm_id *all[] = { near, far };
	for (int which = 0; which < 2; which++) {
		struct sockaddr_in own = at("0.0.0.0", port_of(near));
		struct rdma_cm_id *id = id_on(servers);
		CODE(rdma_bind_addr(id, (struct sockaddr *)&own) ? errno : 0, EADDRNOTAVAIL);
		own = at(which ? "127.0.0.2" : "127.0.0.1", port_of(near));
		CODE(rdma_bind_addr(id, (struct sockaddr *)&own) ? errno : 0, EADDRINUSE);
		CODE(rdma_destroy_id(id), 0);
		id = asks(which ? "127.0.0.2" : "127.0.0.1", port_of(near));
		struct rdma_cm_event event = next(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
		CODE(event.listen_id == all[which], 1);
		accepted(event.id, id);
		CODE(rdma_destroy_id(event.id), 0);
		next(clients, RDMA_CM_EVENT_DISCONNECTED);
		CODE(rdma_destroy_id(id), 0);
	}
	/* The other stays when one goes. */
	uint16_t port = port_of(near);
	CODE(rdma_destroy_id(near), 0);
	struct rdma_cm_id *id = asks("127.0.0.2", port);
	CODE(next(servers, RDMA_CM_EVENT_CONNECT_REQUEST).listen_id == far, 1);
	CODE(rdma_destroy_id(id), 0);
	struct rdma_cm_id *nowhere = asks("127.0.0.1", port);
	CODE(next(clients, RDMA_CM_EVENT_REJECTED).status, 8);
	CODE(rdma_destroy_id(nowhere), 0);
	/* A port that is had at all addresses is had at each. */
	CODE(rdma_destroy_id(far), 0);
	struct rdma_cm_id *everywhere = listener("0.0.0.0", port, 8);
	struct sockaddr_in own = at("127.0.0.1", port);
	id = id_on(servers);
	CODE(rdma_bind_addr(id, (struct sockaddr *)&own) ? errno : 0, EADDRNOTAVAIL);
	CODE(rdma_destroy_id(everywhere), 0);
}

/* Ends a child, which must have found all as it ought to be. */
static void well(pid_t pid)
{
	int status;
	CODE(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, 1);
}

/* What it comes to when an id is to share a port. */
static int shares_with(struct rdma_cm_id *id, const char *address, uint16_t port)
{
	struct sockaddr_in own = at(address, port);
	int reuses = 1;
	CODE(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &reuses, sizeof(reuses)), 0);
	return rdma_bind_addr(id, (struct sockaddr *)&own) ? errno : 0;
}

static struct rdma_cm_id *shares(uint16_t port)
{
	struct rdma_cm_id *id = id_on(servers);
	CODE(shares_with(id, "127.0.0.1", port), 0);
	return id;
}

/* In a program of its own: what it comes to when a port is to be shared. */
static void joins(void)
{
	CODE(shares_with(id_on(servers), getenv("ADDRESS"), atoi(getenv("PORT"))), atoi(getenv("WANTED")));
}

/* In a program of its own: whether a port that may be shared can be listened on. */
static void second(void)
{
	struct rdma_cm_id *id = shares(atoi(getenv("PORT")));
	CODE(rdma_listen(id, 8) ? errno : 0, atoi(getenv("WANTED")));
}

/* Has another program do something with a port of an address, which is to come to this. */
static void other(const char *does, const char *address, uint16_t port, int wanted)
{
	char number[16];
	setenv("ADDRESS", address, 1);
	snprintf(number, sizeof(number), "%u", port);
	setenv("PORT", number, 1);
	snprintf(number, sizeof(number), "%d", wanted);
	setenv("WANTED", number, 1);
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		execl("/proc/self/exe", "cm", does, NULL);
		_exit(127);
	}
	well(pid);
}

static void other_listens(uint16_t port, int wanted)
{
	other("second", "127.0.0.1", port, wanted);
}

/* A port that is shared has one listener all the same, and who has it alone shares it with none that would. */
static void reuse(void)
{
	struct rdma_cm_id *alone = listener("127.0.0.1", 0, 8);
	uint16_t port = port_of(alone);
	other("joins", "127.0.0.1", port, EADDRINUSE);
	other("joins", "0.0.0.0", port, EADDRINUSE);
	other("joins", "127.0.0.2", port, 0);
	CODE(rdma_destroy_id(alone), 0);
	struct rdma_cm_id *any = shares(0);
	other("joins", "127.0.0.1", port_of(any), 0);
	CODE(rdma_destroy_id(any), 0);
	struct rdma_cm_id *bound = shares(port), *listens = shares(port);
	other_listens(port, 0);
	CODE(rdma_listen(listens, 8), 0);
	other_listens(port, EADDRINUSE);
	CODE(rdma_destroy_id(listens), 0);
	other_listens(port, 0);
	CODE(rdma_listen(bound, 8), 0);
	CODE(rdma_destroy_id(bound), 0);
}

/* In a program of its own: what binding to a port of an address comes to. */
static void binds(void)
{
	struct sockaddr_in own = at(getenv("ADDRESS"), atoi(getenv("PORT")));
	CODE(rdma_bind_addr(id_on(servers), (struct sockaddr *)&own) ? errno : 0, atoi(getenv("WANTED")));
}

static void other_binds(const char *address, uint16_t port, int wanted)
{
	other("binds", address, port, wanted);
}

/* A port of all addresses is nobody else's at any of them: who took it at one had all that connected there. */
static void everywhere(void)
{
	struct rdma_cm_id *all = listener("0.0.0.0", 0, 8);
	uint16_t port = port_of(all);
	other_binds("127.0.0.1", port, EADDRINUSE);
	other_binds("0.0.0.0", port, EADDRINUSE);
	CODE(rdma_destroy_id(all), 0);
	struct rdma_cm_id *one = listener("127.0.0.1", port, 8);
	other_binds("0.0.0.0", port, EADDRINUSE);
	other_binds("127.0.0.2", port, 0);
	CODE(rdma_destroy_id(one), 0);
	other_binds("0.0.0.0", port, 0);
}

/* Ports that another host's program knows. */
enum { OF_ALL = 7174, OF_ONE };

/* On a host of its own: a listener at all addresses, and one at the own, written as one of IPv6. Each hears of one client, and
   who comes from where. */
static void hears(void)
{
	struct sockaddr_storage one = anywhere(getenv("OWN"), OF_ONE);
	struct rdma_cm_id *listens = id_on(servers);
	listener("0.0.0.0", OF_ALL, 8);
	CODE(rdma_bind_addr(listens, (struct sockaddr *)&one), 0);
	CODE(listens->verbs != NULL, 1);
	CODE(rdma_listen(listens, 8), 0);
	printf("listens\n");
	fflush(stdout);
	for (int which = 0; which < 2; which++) {
		struct rdma_cm_id *request = next(servers, RDMA_CM_EVENT_CONNECT_REQUEST).id;
		CODE(port_of(request), which ? OF_ONE : OF_ALL);
		struct rdma_conn_param param = { .qp_num = 0x222 };
		CODE(rdma_accept(request, &param), 0);
		CODE(next(servers, RDMA_CM_EVENT_ESTABLISHED).id == request, 1);
		CODE(next(servers, RDMA_CM_EVENT_DISCONNECTED).id == request, 1);
		CODE(rdma_destroy_id(request), 0);
	}
}

/* What asks for a connection to an address of either version. */
static struct rdma_cm_id *resolves(const char *address, uint16_t port, enum rdma_cm_event_type kind)
{
	struct rdma_cm_id *id = id_on(clients);
	struct sockaddr_storage to = anywhere(address, port);
	CODE(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000), 0);
	CODE(next(clients, kind).id == id, 1);
	return id;
}

/* Beside it, on another host: an address of IPv4 may be written as one of IPv6, at either end, and one of IPv6 is out of reach. */
static void versions(void)
{
	const char *there[] = { getenv("THERE_AS_V6"), getenv("THERE") };
	for (int which = 0; which < 2; which++) {
		struct rdma_cm_id *id = resolves(there[which], which ? OF_ONE : OF_ALL, RDMA_CM_EVENT_ADDR_RESOLVED);
		CODE(rdma_get_local_addr(id)->sa_family, which ? AF_INET : AF_INET6);
		CODE(rdma_resolve_route(id, 1000), 0);
		next(clients, RDMA_CM_EVENT_ROUTE_RESOLVED);
		struct rdma_conn_param param = { .retry_count = 7, .qp_num = 0x111 };
		CODE(rdma_connect(id, &param), 0);
		CODE(next(clients, RDMA_CM_EVENT_CONNECT_RESPONSE).id == id, 1);
		CODE(rdma_establish(id), 0);
		CODE(rdma_destroy_id(id), 0);
	}
	CODE(rdma_destroy_id(resolves("2001:db8::1", OF_ALL, RDMA_CM_EVENT_ADDR_ERROR)), 0);
}

static int binds_v6(struct rdma_cm_id *id, const char *address, uint16_t port, int only)
{
	struct sockaddr_in6 own = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	inet_pton(AF_INET6, address, &own.sin6_addr);
	CODE(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only, sizeof(only)), 0);
	return rdma_bind_addr(id, (struct sockaddr *)&own) ? errno : 0;
}

/* All addresses of one family leave a port to those of the other, if both are told so; IPv4's are without. */
static void families(void)
{
	struct rdma_cm_id *v4 = listener("0.0.0.0", 0, 8);
	uint16_t port = port_of(v4);
	struct rdma_cm_id *both = id_on(servers);
	CODE(binds_v6(both, "::", port, 0), EADDRNOTAVAIL);
	struct rdma_cm_id *v6 = id_on(servers);
	CODE(binds_v6(v6, "::", port, 1), 0);
	CODE(rdma_listen(v6, 8), 0);
	struct rdma_cm_id *id = asks("127.0.0.1", port);
	CODE(next(servers, RDMA_CM_EVENT_CONNECT_REQUEST).listen_id == v4, 1);
	CODE(rdma_destroy_id(id), 0);
	/* IPv4's are not those of the one that is left. */
	CODE(rdma_destroy_id(v4), 0);
	id = asks("127.0.0.1", port);
	CODE(next(clients, RDMA_CM_EVENT_REJECTED).status, 8);
	CODE(rdma_destroy_id(id), 0);
	CODE(rdma_destroy_id(v6), 0);
	/* Of one that was not told they are, also for other programs. */
	v6 = id_on(servers);
	CODE(binds_v6(v6, "::", port, 0), 0);
	CODE(rdma_listen(v6, 8), 0);
	other_binds("127.0.0.1", port, EADDRINUSE);
	id = asks("127.0.0.1", port);
	CODE(next(servers, RDMA_CM_EVENT_CONNECT_REQUEST).listen_id == v6, 1);
	CODE(rdma_destroy_id(id), 0);
	CODE(rdma_destroy_id(v6), 0);
}

/* Loopback addresses are none of a device that another interface has: who is bound to one has no device until he knows with
   whom he connects, as in the kernel, which takes them for all addresses. */
static void loopback(void)
{
	struct sockaddr_in loop = at("127.0.0.1", 0), own = at(getenv("ELVER_ADDRESS"), 0);
	struct rdma_cm_id *listens = id_on(servers), *asking = id_on(clients), *owns = id_on(servers);
	CODE(rdma_bind_addr(owns, (struct sockaddr *)&own), 0);
	CODE(owns->verbs != NULL, 1);
	CODE(rdma_bind_addr(listens, (struct sockaddr *)&loop), 0);
	CODE(rdma_listen(listens, 8), 0);
	CODE(listens->verbs == NULL, 1);
	CODE(rdma_bind_addr(asking, (struct sockaddr *)&loop), 0);
	CODE(asking->verbs == NULL, 1);
	struct sockaddr_in to = at("127.0.0.1", port_of(listens));
	CODE(rdma_resolve_addr(asking, NULL, (struct sockaddr *)&to, 1000), 0);
	next(clients, RDMA_CM_EVENT_ADDR_RESOLVED);
	CODE(asking->verbs == owns->verbs, 1);
	/* Nor has another interface's address one. */
	CODE(system("ip link add other type veth peer name end && ip address add 10.77.0.1/24 dev other"), 0);
	struct sockaddr_in other = at("10.77.0.1", 0);
	struct rdma_cm_id *others = id_on(servers);
	CODE(rdma_bind_addr(others, (struct sockaddr *)&other), 0);
	CODE(others->verbs == NULL, 1);
	CODE(rdma_destroy_id(others), 0);
	CODE(rdma_destroy_id(asking) | rdma_destroy_id(listens) | rdma_destroy_id(owns), 0);
}

/* A child has no ports of its parent's, which is free to give them back and to take them again. */
static void forks(void)
{
	struct rdma_cm_id *listens = listener("127.0.0.1", 0, 8);
	uint16_t port = port_of(listens);
	int ends[2], begun[2];
	char byte = 0;
	CODE(pipe(ends), 0);
	CODE(pipe(begun), 0);
	pid_t pid = fork();
	if (pid == 0) {
		close(ends[1]);
		_exit(write(begun[1], &byte, 1) != 1 || read(ends[0], &byte, 1) != 0);
	}
	CODE(read(begun[0], &byte, 1), 1);
	CODE(rdma_destroy_id(listens), 0);
	listens = listener("127.0.0.1", port, 8);
	CODE(rdma_destroy_id(listens), 0);
	close(ends[1]);
	well(pid);
}

enum { FORKS = 400 };

static _Atomic int forked;

/* Children that stay until nobody has the other end. */
static void *forks_on(void *ends)
{
	for (int round = 0; round < FORKS; round++) {
		char byte;
		pid_t pid = fork();
		if (pid == 0) {
			close(((int *)ends)[1]);
			_exit(read(((int *)ends)[0], &byte, 1) != 0);
		}
		CODE(pid > 0, 1);
	}
	forked = 1;
	return NULL;
}

/* Binds to a port that nobody has for long. A child has what its parent had until it has begun. */
static int comes_to_have(struct rdma_cm_id *id, uint16_t port)
{
	struct sockaddr_in own = at("127.0.0.1", port);
	time_t end = time(NULL) + PATIENCE_MS / 1000;
	int error;
	while ((error = rdma_bind_addr(id, (struct sockaddr *)&own) ? errno : 0) == EADDRINUSE && time(NULL) < end)
		sched_yield();
	return error;
}

/* Nor does one that begins just when a port is taken or given back, by another thread. */
static void forks_beside(void)
{
	struct rdma_cm_id *id = listener("127.0.0.1", 0, 8);
	uint16_t port = port_of(id);
	pthread_t thread;
	int ends[2];
	CODE(rdma_destroy_id(id), 0);
	CODE(pipe(ends), 0);
	CODE(pthread_create(&thread, NULL, forks_on, ends), 0);
	while (!forked && !failures) {
		id = id_on(servers);
		CODE(comes_to_have(id, port), 0);
		CODE(rdma_destroy_id(id), 0);
	}
	CODE(pthread_join(thread, NULL), 0);
	close(ends[1]);
	for (int round = 0; round < FORKS; round++) {
		int status;
		CODE(wait(&status) > 0 && status == 0, 1);
	}
}

/* Each client has a port of its own, and none a descriptor. */
static void many(void)
{
	enum { MANY = 600, DESCRIPTORS = 256 };
	static struct rdma_cm_id *ids[MANY];
	static uint8_t seen[1 << 16];
	struct sockaddr_in from = at("127.0.0.3", 0), to = at("127.0.0.1", 7174);
	struct rlimit limit;
	CODE(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = DESCRIPTORS;
	CODE(setrlimit(RLIMIT_NOFILE, &limit), 0);
	for (int which = 0; which < MANY; which++) {
		struct sockaddr *own = which % 2 ? (struct sockaddr *)&from : NULL;
		ids[which] = id_on(clients);
		CODE(rdma_resolve_addr(ids[which], own, (struct sockaddr *)&to, 1000), 0);
		next(clients, RDMA_CM_EVENT_ADDR_RESOLVED);
		struct sockaddr_in *told = (struct sockaddr_in *)rdma_get_local_addr(ids[which]);
		CODE(told->sin_addr.s_addr == (own ? from : to).sin_addr.s_addr, 1);
		CODE(seen[port_of(ids[which])]++, 0);
	}
	for (int which = 0; which < MANY; which++)
		CODE(rdma_destroy_id(ids[which]), 0);
	from = at("192.0.2.1", 0);
	struct rdma_cm_id *nowhere = id_on(clients);
	CODE(rdma_resolve_addr(nowhere, (struct sockaddr *)&from, (struct sockaddr *)&to, 1000) ? errno : 0, ENODEV);
	CODE(rdma_destroy_id(nowhere), 0);
}

/* A pipe's end in place of a channel: what is written there goes into the pipe. */
static void replaced(int (*replace)(int from, int to))
{
	struct rdma_cm_id *listens = listener("127.0.0.1", 0, 8);
	struct rdma_event_channel *old = clients;
	struct rdma_cm_id *id = asks("127.0.0.1", port_of(listens));
	struct rdma_cm_id *request = next(servers, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	accepted(request, id);
	int ends[2];
	char found[6] = "";
	CODE(pipe(ends), 0);
	/* What can be no copy of a descriptor ends nothing. */
	CODE(replace(1000000, old->fd), -1);
	CODE(replace(ends[1], old->fd), old->fd);
	CODE(next(servers, RDMA_CM_EVENT_DISCONNECTED).id == request, 1);
	CODE(write(old->fd, "hello", 5), 5);
	CODE(read(ends[0], found, 5), 5);
	CODE(strcmp(found, "hello"), 0);
	CODE(close(old->fd), 0);
	MADE(clients, rdma_create_event_channel());
	CODE(rdma_destroy_id(request), 0);
	CODE(rdma_destroy_id(listens), 0);
}

static int by_dup2(int from, int to)
{
	return dup2(from, to);
}

static int by_dup3(int from, int to)
{
	return dup3(from, to, O_CLOEXEC);
}

static int by_close_range(int from, int to)
{
	if (fcntl(from, F_GETFD) == -1)
		return -1;
	CODE(close_range(to, to, CLOSE_RANGE_CLOEXEC), 0);
	CODE(close_range(to, to, 0), 0);
	return fcntl(from, F_DUPFD, to);
}

static void replaces(void)
{
	replaced(by_dup2);
	replaced(by_dup3);
	replaced(by_close_range);
}

/* Ends a child of vfork, which closes what it has of its parent's in all ways. */
static void child_closes(void)
{
	int status;
	pid_t pid = vfork();
	if (pid == 0) {
		dup2(servers->fd, clients->fd);
		close(servers->fd);
		closefrom(3);
		_exit(0);
	}
	CODE(waitpid(pid, &status, 0) == pid && status == 0, 1);
}

static void vforks(void)
{
	struct rdma_cm_id *listens = listener("127.0.0.1", 0, 8);
	child_closes();
	struct rdma_cm_id *id = asks("127.0.0.1", port_of(listens));
	struct rdma_cm_id *request = next(servers, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	child_closes();
	accepted(request, id);
	CODE(rdma_destroy_id(request), 0);
	next(clients, RDMA_CM_EVENT_DISCONNECTED);
	CODE(rdma_destroy_id(id), 0);
	CODE(rdma_destroy_id(listens), 0);
}

static void *acknowledges(void *event)
{
	CODE(rdma_ack_cm_event(event), 0);
	return NULL;
}

/* Nothing comes on a channel. */
static void quiet(struct rdma_event_channel *channel)
{
	struct pollfd comes = { channel->fd, POLLIN };
	CODE(poll(&comes, 1, 0), 0);
}

/* What was told of an id and not taken goes with it to another channel, and what was taken is waited for. */
static void migrates(void)
{
	struct rdma_event_channel *others = NULL;
	MADE(others, rdma_create_event_channel());
	struct rdma_cm_id *listens = listener("127.0.0.1", 0, 8), *stays = id_on(clients), *moves = id_on(clients);
	struct sockaddr_in to = at("127.0.0.1", port_of(listens));
	CODE(rdma_resolve_addr(moves, NULL, (struct sockaddr *)&to, 1000), 0);
	CODE(rdma_resolve_addr(stays, NULL, (struct sockaddr *)&to, 1000), 0);
	CODE(rdma_migrate_id(moves, others), 0);
	CODE(next(clients, RDMA_CM_EVENT_ADDR_RESOLVED).id == stays, 1);
	quiet(clients);
	CODE(next(others, RDMA_CM_EVENT_ADDR_RESOLVED).id == moves, 1);
	quiet(others);
	CODE(rdma_resolve_route(moves, 1000), 0);
	struct pollfd comes = { others->fd, POLLIN };
	CODE(poll(&comes, 1, PATIENCE_MS), 1);
	struct rdma_cm_event *event;
	CODE(rdma_get_cm_event(others, &event), 0);
	CODE(event->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
	pthread_t thread;
	CODE(pthread_create(&thread, NULL, acknowledges, event), 0);
	CODE(rdma_migrate_id(moves, clients), 0);
	CODE(pthread_join(thread, NULL), 0);
	struct rdma_conn_param param = { .retry_count = 7, .qp_num = 0x111 };
	CODE(rdma_connect(moves, &param), 0);
	struct rdma_cm_id *request = next(servers, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	CODE(rdma_migrate_id(request, others), 0);
	param.qp_num = 0x222;
	CODE(rdma_accept(request, &param), 0);
	CODE(next(clients, RDMA_CM_EVENT_CONNECT_RESPONSE).id == moves, 1);
	CODE(rdma_establish(moves), 0);
	CODE(next(others, RDMA_CM_EVENT_ESTABLISHED).id == request, 1);
	quiet(servers);
	CODE(rdma_migrate_id(stays, NULL) == 0, 1);
	CODE(rdma_destroy_id(request), 0);
	next(clients, RDMA_CM_EVENT_DISCONNECTED);
	CODE(rdma_destroy_id(moves) | rdma_destroy_id(stays) | rdma_destroy_id(listens), 0);
	rdma_destroy_event_channel(others);
}

/* A request that nobody took goes with its listener, and its id outlives the channel that it came to. */
static void follows(void)
{
	struct rdma_event_channel *old = servers;
	struct rdma_cm_id *listens = listener("127.0.0.1", 0, 8);
	struct rdma_cm_id *id = asks("127.0.0.1", port_of(listens));
	struct pollfd comes = { old->fd, POLLIN };
	CODE(poll(&comes, 1, PATIENCE_MS), 1);
	MADE(servers, rdma_create_event_channel());
	CODE(rdma_migrate_id(listens, servers), 0);
	rdma_destroy_event_channel(old);
	struct rdma_cm_id *request = next(servers, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	accepted(request, id);
	CODE(rdma_disconnect(id), 0);
	CODE(next(servers, RDMA_CM_EVENT_DISCONNECTED).id == request, 1);
	CODE(rdma_destroy_id(request) | rdma_destroy_id(id) | rdma_destroy_id(listens), 0);
}

enum { CLOSED = 1000 };

static struct rdma_event_channel *closing;
static _Atomic pid_t waiter;
static _Atomic int told;

static void *waits(void *unused)
{
	struct rdma_cm_event *event;
	waiter = gettid();
	if (rdma_get_cm_event(closing, &event))
		told = errno;
	else
		told = -1;
	return NULL;
}

static void nothing(int signal)
{
}

/* Another thread waits for a channel's event that is closed just when one comes: it gets that, or sleeps on, as the kernel's
   call has its file, until it is cancelled or a signal's handler has run. */
static void closes(void)
{
	struct sigaction handled = { .sa_handler = nothing };
	CODE(sigaction(SIGUSR1, &handled, NULL), 0);
	for (int round = 0; round < CLOSED; round++) {
		struct sockaddr_in to = at("127.0.0.1", 7174);
		pthread_t thread;
		waiter = told = 0;
		MADE(closing, rdma_create_event_channel());
		struct rdma_cm_id *id = id_on(closing);
		CODE(pthread_create(&thread, NULL, waits, NULL), 0);
		while (!waiter || !sleeps(waiter))
			sched_yield();
		CODE(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000), 0);
		CODE(close(closing->fd), 0);
		/* It sleeps again, or has ended. */
		while (!told && !sleeps(waiter))
			sched_yield();
		CODE(told == 0 || told == -1, 1);
		if (round % 2) {
			/* One that comes just before it sleeps is not the last. */
			while (!told) {
				pthread_kill(thread, SIGUSR1);
				sched_yield();
			}
			CODE(told == EINTR || told == -1, 1);
		} else {
			CODE(pthread_cancel(thread), 0);
		}
		CODE(pthread_join(thread, NULL), 0);
		CODE(told == 0 || told == -1 || round % 2, 1);
	}
}

/* A call that fails, with an errno; or does not. */
#define FAILS(call, error) \
	do { \
		errno = 0; \
		check(#call, (call) ? errno : 0, error); \
	} while (0)

/* What an id is not ready for, or any more, is refused, as the kernel's `rdma_cm` does. */
static void steps(void)
{
	struct rdma_cm_id *listens = listener("127.0.0.1", 0, 8), *id = id_on(clients);
	struct sockaddr_in to = at("127.0.0.1", port_of(listens)), own = at("127.0.0.1", 0);
	struct rdma_conn_param param = { .retry_count = 7, .qp_num = 0x111 };
	FAILS(rdma_bind_addr(listens, (struct sockaddr *)&own), EINVAL);
	FAILS(rdma_listen(listens, 8), EINVAL);
	FAILS(rdma_resolve_addr(listens, NULL, (struct sockaddr *)&to, 1000), EINVAL);
	FAILS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000), 0);
	next(clients, RDMA_CM_EVENT_ADDR_RESOLVED);
	FAILS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000), EINVAL);
	FAILS(rdma_bind_addr(id, (struct sockaddr *)&own), EINVAL);
	FAILS(rdma_listen(id, 8), EINVAL);
	FAILS(rdma_connect(id, &param), EINVAL);
	FAILS(rdma_resolve_route(id, 1000), 0);
	next(clients, RDMA_CM_EVENT_ROUTE_RESOLVED);
	FAILS(rdma_resolve_route(id, 1000), EINVAL);
	FAILS(rdma_disconnect(id), EINVAL);
	FAILS(rdma_connect(id, &param), 0);
	FAILS(rdma_connect(id, &param), EINVAL);
	struct rdma_cm_id *request = next(servers, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	FAILS(rdma_connect(request, &param), EINVAL);
	FAILS(rdma_listen(request, 8), EINVAL);
	accepted(request, id);
	FAILS(rdma_accept(request, &param), EINVAL);
	FAILS(rdma_resolve_route(id, 1000), EINVAL);
	CODE(rdma_destroy_id(request), 0);
	next(clients, RDMA_CM_EVENT_DISCONNECTED);
	CODE(rdma_destroy_id(id) | rdma_destroy_id(listens), 0);
}

/* Private data: as much as there is room for, and what is too much refuses who was to be accepted. */
static void private(void)
{
	static const char bytes[256] = { 1 };
	struct rdma_cm_id *listens = listener("127.0.0.1", 0, 8), *id = id_on(clients);
	struct sockaddr_in to = at("127.0.0.1", port_of(listens));
	struct rdma_conn_param param = { .retry_count = 7, .qp_num = 0x111, .private_data = bytes, .private_data_len = 57 };
	CODE(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000), 0);
	next(clients, RDMA_CM_EVENT_ADDR_RESOLVED);
	CODE(rdma_resolve_route(id, 1000), 0);
	next(clients, RDMA_CM_EVENT_ROUTE_RESOLVED);
	FAILS(rdma_connect(id, &param), EINVAL);
	param.private_data_len = 56;
	FAILS(rdma_connect(id, &param), 0);
	struct rdma_cm_event asked = next(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
	CODE(asked.param.conn.private_data_len, 56);
	FAILS(rdma_reject(asked.id, bytes, 149), EINVAL);
	param.private_data_len = 197;
	FAILS(rdma_accept(asked.id, &param), EINVAL);
	struct rdma_cm_event told = next(clients, RDMA_CM_EVENT_REJECTED);
	CODE(told.status, 28);
	param.private_data_len = 196;
	FAILS(rdma_accept(asked.id, &param), EINVAL);
	CODE(rdma_destroy_id(asked.id) | rdma_destroy_id(id) | rdma_destroy_id(listens), 0);
}

/* In a program of its own: connects, and is killed at once. */
static void dies(void)
{
	struct rdma_cm_id *id = asks("127.0.0.1", atoi(getenv("PORT")));
	CODE(next(clients, RDMA_CM_EVENT_CONNECT_RESPONSE).id == id, 1);
	CODE(rdma_establish(id), 0);
	kill(getpid(), SIGKILL);
}

enum { DEATHS = 60 };

/* What who is killed has said before is heard before that it has ended. */
static void dying(void)
{
	struct rdma_cm_id *listens = listener("127.0.0.1", 0, 8);
	char number[16];
	snprintf(number, sizeof(number), "%u", port_of(listens));
	setenv("PORT", number, 1);
	for (int round = 0; round < DEATHS; round++) {
		int status;
		pid_t pid = fork();
		if (pid == 0) {
			execl("/proc/self/exe", "cm", "dies", NULL);
			_exit(127);
		}
		struct rdma_cm_id *request = next(servers, RDMA_CM_EVENT_CONNECT_REQUEST).id;
		struct rdma_conn_param param = { .qp_num = 0x222 };
		CODE(rdma_accept(request, &param), 0);
		CODE(next(servers, RDMA_CM_EVENT_ESTABLISHED).id == request, 1);
		CODE(next(servers, RDMA_CM_EVENT_DISCONNECTED).id == request, 1);
		CODE(rdma_destroy_id(request), 0);
		CODE(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status), 1);
	}
	CODE(rdma_destroy_id(listens), 0);
}

/* Whether a thread is in the midst of a system call. */
static int is_in(pid_t thread, long call)
{
	char name[64], line[256] = "";
	snprintf(name, sizeof name, "/proc/self/task/%d/syscall", thread);
	FILE *stat = fopen(name, "r");
	int is_in = stat && fgets(line, sizeof line, stat) && *line != 'r' && atol(line) == call;
	if (stat)
		fclose(stat);
	return is_in;
}

/* Starts a thread that waits for an event of a new channel, and sleeps. */
static pthread_t sleeper(void)
{
	pthread_t thread;
	waiter = told = 0;
	MADE(closing, rdma_create_event_channel());
	CODE(pthread_create(&thread, NULL, waits, NULL), 0);
	while (!waiter || !is_in(waiter, SYS_read) || !sleeps(waiter))
		sched_yield();
	return thread;
}

/* A signal at the very moment in which a channel is closed ends the wait of who sleeps on, each by itself; where the call begins again
   behind a handler, there is no descriptor any more. */
static void interrupted(void)
{
	for (int round = 0, first = 0; round < CLOSED; round++) {
		struct sigaction handled = { .sa_handler = nothing, .sa_flags = round % 2 ? SA_RESTART : 0 };
		CODE(sigaction(SIGUSR1, &handled, NULL), 0);
		pthread_t thread = sleeper();
		int fd = closing->fd;
		CODE(close(fd), 0);
		CODE(pthread_kill(thread, SIGUSR1), 0);
		CODE(pthread_join(thread, NULL), 0);
		CODE(told, round % 2 ? EBADF : EINTR);
		free(closing);
		/* What kept it asleep goes with the next one. */
		first = first ? first : fd;
		CODE(fd <= first + 2, 1);
	}
}

static _Atomic int asked;

static void *asks_on(void *unused)
{
	struct rdma_cm_event *event;
	waiter = gettid();
	do {
		CODE(rdma_get_cm_event(closing, &event), -1);
		asked++;
	} while (errno == EAGAIN);
	told = errno;
	return NULL;
}

/* Where a channel that does not wait becomes another file, nobody waits by that or reads it. */
static void becomes(void)
{
	for (int round = 0; round < CLOSED; round++) {
		int ends[2], left;
		pthread_t thread;
		waiter = told = asked = 0;
		MADE(closing, rdma_create_event_channel());
		int fd = closing->fd;
		CODE(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
		CODE(pipe(ends), 0);
		CODE(write(ends[1], "nobody's", 8), 8);
		CODE(pthread_create(&thread, NULL, asks_on, NULL), 0);
		while (asked < 10 + round % 10)
			;
		CODE(dup2(ends[0], fd), fd);
		while (!told && !is_in(waiter, SYS_pause) && !is_in(waiter, SYS_read))
			sched_yield();
		CODE(told, EBADF);
		CODE(ioctl(ends[0], FIONREAD, &left), 0);
		CODE(left, 8);
		if (!told)
			exit(1);
		CODE(pthread_join(thread, NULL), 0);
		CODE(close(fd) | close(ends[0]) | close(ends[1]), 0);
		free(closing);
	}
}

int main(int count, char **words)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = { { "taken", taken }, { "backlog", backlog }, { "over", over }, { "addresses", addresses }, { "sources", sources }, { "further", further },
		      { "reuse", reuse }, { "second", second }, { "joins", joins }, { "hears", hears }, { "versions", versions }, { "many", many }, { "binds", binds }, { "everywhere", everywhere }, { "families", families },
		      { "loopback", loopback },
		      { "forks", forks }, { "forks-beside", forks_beside },
		      { "replaces", replaces }, { "vforks", vforks }, { "closes", closes }, { "interrupted", interrupted }, { "becomes", becomes }, { "migrates", migrates }, { "follows", follows }, { "steps", steps }, { "private", private }, { "dies", dies }, { "dying", dying } };
	MADE(servers, rdma_create_event_channel());
	MADE(clients, rdma_create_event_channel());
	for (size_t which = 0; which < sizeof(cases) / sizeof(cases[0]); which++)
		if (count > 1 && !strcmp(words[1], cases[which].name))
			cases[which].run();
	printf("%d checks, %d failures\n", checks, failures);
	return failures > 0 || checks == 0;
}
