// node kube.js NAME with KUBECONFIG: lists, watches, creates, patches and deletes by @kubernetes/client-node.
const k8s = require('@kubernetes/client-node');
const name = process.argv[2], kc = new k8s.KubeConfig();
kc.loadFromFile(process.env.KUBECONFIG);
const api = kc.makeApiClient(k8s.CoreV1Api), at = {namespace: 'default'};
const labels = {by: name};
(async () => {
  const list = await api.listNamespacedConfigMap({namespace: 'kube-public', labelSelector: 'big=1'});
  console.log('list', list.items.length, JSON.stringify(list.items.map((one) => one.data)).length);
  const events = [];
  const abort = await new k8s.Watch(kc).watch('/api/v1/namespaces/default/configmaps', {labelSelector: 'by=' + name}, (type, o) => events.push(`${type} ${o.data.n}`), () => events.push('end'));
  await api.createNamespacedConfigMap({...at, body: {metadata: {name, labels}, data: {n: '1'}}});
  await api.patchNamespacedConfigMap({...at, name, body: {data: {n: '2'}}}, k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.MergePatch));
  await api.deleteNamespacedConfigMap({...at, name});
  while (events.length < 3) await new Promise((done) => setTimeout(done, 20));
  abort.abort();
  console.log(events.slice(0, 3).join(', '));
  await api.readNamespacedConfigMap({...at, name}).catch((err) => console.log(err.code, JSON.parse(err.body).reason));
  process.exit(0);
})().catch((err) => { console.log(String(err)); process.exit(1); });
