/* What libibverbs reads of sysfs for programs. */
#include <infiniband/verbs.h>

#include "check.h"

int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);
const char *ibv_get_sysfs_path(void);

int main(void)
{
	struct ibv_device **list;
	char text[64], small[5], expected[64];
	FILE *file;
	MADE(list, ibv_get_device_list(NULL));
	CODE(ibv_read_sysfs_file(list[0]->ibdev_path, "node_desc", text, sizeof(text)), 5);
	CODE(strcmp(text, "Elver"), 0);
	CODE(ibv_read_sysfs_file(list[0]->dev_path, "ibdev", text, sizeof(text)), 6);
	CODE(strcmp(text, ibv_get_device_name(list[0])), 0);
	CODE(ibv_read_sysfs_file(list[0]->ibdev_path, "ports/1/gid_attrs/types/0", text, sizeof(text)), 7);
	CODE(strcmp(text, "RoCE v2"), 0);
	/* Other files are the host's. */
	MADE(file, fopen("/sys/devices/system/cpu/online", "r"));
	CODE(fgets(expected, sizeof(expected), file) != NULL, 1);
	fclose(file);
	CODE(ibv_read_sysfs_file(ibv_get_sysfs_path(), "devices/system/cpu/online", text, sizeof(text)),
	     strlen(expected) - 1);
	CODE(strncmp(text, expected, strlen(expected) - 1), 0);
	/* Text must have an end. */
	errno = 0;
	CODE(ibv_read_sysfs_file(list[0]->ibdev_path, "node_desc", small, sizeof(small)), -1);
	CODE(errno, EOVERFLOW);
	errno = 0;
	CODE(ibv_read_sysfs_file(list[0]->ibdev_path, "board_id", text, sizeof(text)), -1);
	CODE(errno, ENOENT);
	CODE(ibv_read_sysfs_file(list[0]->ibdev_path, "node_desc", text, 0), 0);
	ibv_free_device_list(list);
	printf("%d checks, %d failures\n", checks, failures);
	return failures != 0;
}
