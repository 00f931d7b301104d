package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

// Registry is the --registry flag of a Fairlead whose APIServices are in the cluster's etcd.
func (c *Cluster) Registry() string { return "etcd:" + c.etcdURL }

// EtcdURLs are the client URLs of the etcd members, in the order of Members.
func (c *Cluster) EtcdURLs() []string { return strings.Split(c.etcdURL, ",") }

// startEtcd starts all members at once: none becomes ready before a majority runs.
func (c *Cluster) startEtcd(ctx context.Context) (err error) {
	defer try.Catch(&err)
	path, ports := try.Get(c.cfg.tool(ctx, "etcd")), try.Get(c.cfg.FreePorts(2*c.cfg.Members))
	var clients, peers []string
	for i := range c.cfg.Members {
		clients = append(clients, url("http", c.cfg.Loopback, ports[2*i]))
		peers = append(peers, numbered("etcd", i)+"="+url("http", c.cfg.Loopback, ports[2*i+1]))
	}
	c.etcdURL = strings.Join(clients, ",")
	c.Members = make([]*Part, len(clients))
	g, ctx := errgroup.WithContext(ctx)
	for i, client := range clients {
		name, peer, _ := strings.Cut(peers[i], "=")
		g.Go(func() (err error) {
			c.Members[i], err = c.Run(ctx, Command{
				Name: name, Path: path,
				Args: append([]string{
					"--name=" + name, "--data-dir=" + filepath.Join(c.dir, "data-"+name),
					"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
					"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=" + strings.Join(peers, ","),
					"--unsafe-no-fsync", // the data need not survive a power failure
					"--log-level=warn",
				}, c.cfg.EtcdArgs...),
				Ready: Endpoint{URL: client}.Serves("/readyz", Credentials{}),
			})
			return err
		})
	}
	err = g.Wait()
	c.Etcd = c.Members[0]
	return err
}

// numbered is the name of part i of several: only the first one has no number.
func numbered(name string, i int) string {
	if i == 0 {
		return name
	}
	return fmt.Sprintf("%s-%d", name, i)
}
