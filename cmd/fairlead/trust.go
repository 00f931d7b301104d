package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io/fs"
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
)

// authConfigMap is where a cluster publishes whom its extension servers trust.
func authConfigMap() trust.Ref {
	return trust.Ref{Namespace: "kube-system", Name: "extension-apiserver-authentication"}
}

func (d *door) makeTrust(context.Context) (err error) {
	d.trust, err = trust.New(trust.Config{
		Table: d.registry.Table, Watch: d.watchConfigMap, Renewed: func(apiService string) { d.prober.Renew(apiService) }, Logger: d.log, Metrics: d.metrics,
		ClientCertificate: func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return d.certs.ProxyClient().GetClientCertificate(r)
		},
	})
	if err != nil {
		return err
	}
	d.certs, err = certs.New(certs.Config{
		Serving: filePair(d.o.tlsCert, d.o.tlsKey), SNI: sniPairs(d.o.sniPairs), MinVersion: tlsVersion(d.o.minTLSVersion), CipherSuites: cipherSuites(d.o.cipherSuites), HTTP1: !d.o.http2,
		ClientCA: d.o.clientCA, RequestHeaderCA: d.o.requestHeaderCA, AllowedNames: d.o.allowedNames,
		ConfigMap: authConfigMap(), TrustConfigMap: d.o.authConfigMap,
		ProxyClient: filePair(d.o.proxyCert, d.o.proxyKey), Files: append(d.localFiles(), d.makeTokens()...), Watch: d.watchConfigMap, Logger: d.log, Metrics: d.metrics,
	})
	if err != nil {
		return cli.Usage(err)
	}
	return nil
}

// watchConfigMap is the registry's watch in the words of certs.
func (d *door) watchConfigMap(ctx context.Context, ref trust.Ref, changed func(map[string][]byte, error)) error {
	return d.registry.Watch(ctx, ref.Namespace, ref.Name, func(cm *corev1.ConfigMap) {
		if cm == nil {
			changed(nil, fmt.Errorf("getting ConfigMap %s/%s: %w", ref.Namespace, ref.Name, fs.ErrNotExist))
			return
		}
		data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
		for k, v := range cm.Data {
			data[k] = []byte(v)
		}
		maps.Copy(data, cm.BinaryData)
		changed(data, nil)
	})
}

// localTLS makes the TLS configuration of the local apiserver's pools: the kubeconfig's trust without its credentials, and our proxy client certificate
// where X-Remote-* are asserted.
func (d *door) localTLS(withCertificate bool) (*tls.Config, error) {
	tc, err := d.trust.LocalTLS(withCertificate)
	if err != nil {
		return nil, err
	}
	tc.ServerName = d.kube.ServerName
	// The kubeconfig's insecure-skip-tls-verify, which nobody should set; it is obeyed as kubectl obeys it.
	if d.kube.Insecure {
		tc.InsecureSkipVerify, tc.VerifyConnection = true, nil
	}
	return tc, nil
}

// localGuard ends connections whose CA has left the bundle. Without verification there is nothing to guard.
func (d *door) localGuard() func([]*x509.Certificate) (<-chan struct{}, func()) {
	if d.kube.Insecure {
		return nil
	}
	return d.trust.LocalGuard
}

// localFiles are the files that say how to reach the local apiserver, to be followed: the kubeconfig, and the CA that it or the pod names.
func (d *door) localFiles() []certs.File {
	if d.o.alone() {
		return nil
	}
	var files []certs.File
	named := len(d.kube.CAData) == 0 && d.kube.CAFile != ""
	if named {
		files = append(files, certs.File{Use: "local-apiserver-ca", Path: d.kube.CAFile, Take: d.trust.LocalBundle})
	}
	if d.follower != nil {
		files = append(files, certs.File{Use: "kubeconfig", Path: d.o.kubeconfig, Take: func(data []byte) error {
			c, err := d.follower.reload(d.o.kubeconfig, data)
			if err != nil || named {
				return err
			}
			return d.trust.LocalBundle(c.CAData)
		}})
	}
	return files
}
