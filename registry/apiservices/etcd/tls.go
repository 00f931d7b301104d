package etcd

import (
	"context"
	"net"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"k8s.io/klog/v2"
)

// reloading reads CA and key pair for each connection, and logs failed handshakes: gRPC is silent.
type reloading struct {
	credentials.TransportCredentials
	files transport.TLSInfo
}

func transportCredentials(c Config) (grpc.DialOption, error) {
	b := &reloading{files: transport.TLSInfo{TrustedCAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile}}
	config, err := b.files.ClientConfig()
	if err != nil {
		return nil, err
	}
	b.TransportCredentials = credentials.NewTLS(config)
	return grpc.WithTransportCredentials(b), nil
}

func (b *reloading) ClientHandshake(ctx context.Context, authority string,
	c net.Conn) (safe net.Conn, info credentials.AuthInfo, err error) {
	config, err := b.files.ClientConfig()
	if err == nil {
		safe, info, err = credentials.NewTLS(config).ClientHandshake(ctx, authority, c)
	}
	if err != nil {
		klog.ErrorS(err, "no TLS connection to etcd", "address", c.RemoteAddr().String()) // gRPC limits how often
	}
	return safe, info, err
}

func (b *reloading) Clone() credentials.TransportCredentials { return b }
